"""Seconds of one GRPO step (rollout and update), Spaniel against TRL's ``GRPOTrainer``.

    pip install trl==1.16.0 datasets
    python bench/grpo_step_vs_trl.py [--runs 3] [--threads 2] [--trl-batch 4]

Both train the same small model (the packaged one; random weights of the same shape where those are
missing) in float32 on the CPU: 8 questions of a generated world, 8 trajectories each, 6 turns a
trajectory (5 searches and a report), one AdamW step on all 64, the same loss (DAPO, no KL). TRL
runs its own tool loop, with Qwen2.5's chat template as TRL ships it on the model's tokenizer, and
an ``environment_factory`` over the same ``Episode`` that Spaniel's environment uses. Spaniel runs
``rl.train.train`` with TRL's rendering as its system prompt, so that prompts are the same too.

What the model samples is laid down beforehand: real calls of natural length, from a script of the
step. Both sides make every forward pass and every draw, and then go on with the scripted token.
Token ids and rewards of all trajectories are compared after each step and must be identical, so
both sample, read and train on exactly the same tokens; the gradient norms, which are printed too,
show that they compute the same thing.

TRL gets what makes it fast here: no gradient checkpointing, nothing logged or saved, no second pass
for old log-probs, and a batch size of the update chosen by trying, as Spaniel's is. It samples with
``transformers.generate``: vLLM needs a GPU, and transformers' continuous batching refuses this
architecture ("Invalid layer type: conv"). Steps of both alternate, after one of each to warm up.
Prints one JSON object.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # environment_factory is experimental

import torch
from datasets import Dataset
from machine import about
from transformers import LogitsProcessor, LogitsProcessorList, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template

from spaniel.config import (
    EnvConfig,
    IndexConfig,
    OptimizerConfig,
    PolicyConfig,
    RewardConfig,
    RLConfig,
)
from spaniel.env.episode import TASK, Environment, Episode, Step
from spaniel.env.tools import REPORT, SEARCH
from spaniel.errors import ArtifactError
from spaniel.index.build import build_index, open_index
from spaniel.learner import Learner
from spaniel.policy import sampling, torch_engine
from spaniel.policy.base import Request
from spaniel.policy.load import load_policy_model
from spaniel.policy.torch_engine import TorchEngine
from spaniel.renderer import ChatRenderer
from spaniel.rewards.ranking import reward as reward_of
from spaniel.rl.scheduler import Dispatch, Scheduler
from spaniel.rl.train import train
from spaniel.rl.trainer import PolicyTrainer
from spaniel.rollout import Runner, seed_of
from spaniel.types import (
    Completion,
    FinishReason,
    Group,
    Question,
    StopReason,
    ToolCall,
    Trajectory,
)
from spaniel.world.generate import generate_world

SEED = 0
LEARNING_RATE, BETA2, CLIP_LOW, CLIP_HIGH, MAX_GRAD_NORM = 1e-5, 0.95, 0.2, 0.28, 1.0
Script = list[list[int]]
"""Token ids of each turn of one trajectory."""


class Task:
    """The questions, the environment and the scripts, which both sides share."""

    def __init__(self, args: argparse.Namespace, directory: Path, renderer: ChatRenderer) -> None:
        world = generate_world(pages=args.pages, seed=1)
        index_cfg = IndexConfig()
        build_index(world.documents(), directory / "index", index_cfg)
        env_cfg = EnvConfig(
            dialect="hermes",
            max_results=4,
            snippet_words=12,
            max_turns=args.turns,
            max_tokens_per_turn=96,
            max_observation_chars=900,
        )
        engine = open_index(directory / "index", index_cfg, snippet_words=env_cfg.snippet_words)
        self.environment = Environment(engine, env_cfg, tools=(SEARCH, REPORT))
        self.renderer = renderer
        self.questions = world.questions(args.questions, seed=1)
        self.titles = {doc.docid: doc.title for doc in world.documents()}
        self.group_size, self.turns = args.group_size, args.turns

    def questions_of(self, step: int) -> list[Question]:
        """The question of each slot."""
        return self.questions

    def episode(self, question: Question, step: int, slot: int, number: int) -> Episode:
        """With the same shown ids as that rollout of the training loop."""
        seed = seed_of(seed_of(SEED, "rollout", step, slot), number)
        return self.environment.episode(question, seed=seed_of(seed, "aliases"))

    def scripts(self, step: int) -> dict[str, Script]:
        """For each trajectory of a step, by its id, in the order of slots and numbers."""
        return {
            f"step{step}/{slot}/{question.qid}/{number}": [
                list(self.renderer.encode_completion(text))
                for text in self.texts(question, step, slot, number)
            ]
            for slot, question in enumerate(self.questions_of(step))
            for number in range(self.group_size)
        }

    def texts(self, question: Question, step: int, slot: int, number: int) -> list[str]:
        """Searches for titles, a target's now and then, and a report of some of what came."""
        rng = random.Random(seed_of("script", step, slot, number))
        episode = self.episode(question, step, slot, number)
        texts, shown = [], []
        for _ in range(self.turns - 1):
            docids = question.targets if rng.random() < 0.4 else list(self.titles)
            arguments = {"query": self.titles[rng.choice(docids)]}
            texts.append(self.write("search", arguments))
            hits = episode.step(texts[-1], FinishReason.STOP).hits
            shown += [episode.aliases.show(hit.docid) for hit in hits[:2]]
        unique = list(dict.fromkeys(shown))
        return [*texts, self.write("report", {"doc_ids": rng.sample(unique, rng.randint(1, 4))})]

    def write(self, name: str, arguments: dict[str, Any]) -> str:
        """A call in the dialect."""
        call = ToolCall(name=name, arguments=arguments)
        return self.environment.dialect.write(call, self.environment.tools)


# --- Spaniel ------------------------------------------------------------------------------------


class ScriptedEngine(TorchEngine):
    """The sampling engine; what it draws is replaced by the scripted tokens."""

    scripts: dict[str, Script]
    num_turns: dict[str, int]

    async def complete(self, request: Request) -> Completion:
        """The next scripted turn of the episode."""
        self.num_turns[request.episode_id] += 1
        return await super().complete(request)

    def _draw(self, jobs: list[Any], logits: torch.Tensor) -> None:
        wanted = [self._next_token(job) for job in jobs]

        def draw(logits_RV: torch.Tensor, **settings: Any) -> tuple[list[int], list[float]]:
            sampling.draw(logits_RV, **settings)
            wanted_R = torch.tensor(wanted)[:, None]
            return wanted, logits_RV.log_softmax(-1).gather(-1, wanted_R)[:, 0].tolist()

        torch_engine.draw = draw
        super()._draw(jobs, logits)

    def _next_token(self, job: Any) -> int:
        episode = job.request.episode_id
        return self.scripts[episode][self.num_turns[episode] - 1][len(job.token_ids)]


class SpanielSide:
    """Steps of ``rl.train.train``."""

    def __init__(self, task: Task, model: Any, args: argparse.Namespace) -> None:
        self.task, self.num_steps = task, args.runs + 1
        self.engine = ScriptedEngine(
            model,
            stop_ids=sorted(task.renderer.stop_ids),
            decode=task.renderer.decode,
            max_live_episodes=len(task.questions) * task.group_size,
        )
        self.optimizer = OptimizerConfig(
            learning_rate=LEARNING_RATE,
            warmup_frac=0.0,
            beta2=BETA2,
            max_grad_norm=MAX_GRAD_NORM,
            microbatch_tokens=args.microbatch_tokens,
        )
        self.learner = Learner(model, self.optimizer, total_steps=self.num_steps)
        self.runner = Runner(self.engine, task.renderer, task.environment, RewardConfig())
        self.metrics: list[dict[str, float]] = []
        self.groups: list[Group] = []

    def step(self) -> float:
        """Make one; seconds."""
        step = self.learner.num_steps + 1
        self.engine.scripts, self.engine.num_turns = self.task.scripts(step), defaultdict(int)
        cfg = RLConfig(
            steps=step,
            groups_per_step=len(self.task.questions),
            group_size=self.task.group_size,
            clip_low=CLIP_LOW,
            clip_high=CLIP_HIGH,
            optimizer=self.optimizer,
        )

        slots = {q.qid: slot for slot, q in enumerate(self.task.questions_of(step))}

        def on_step(step: int, metrics: dict[str, float], groups: Any) -> None:
            self.metrics.append(metrics)
            self.groups = sorted(groups, key=lambda group: slots[group.question.qid])

        async def sample(dispatch: Dispatch) -> Group:
            slot = slots[dispatch.question.qid]
            name = f"step{step}/{slot}/{dispatch.question.qid}"
            seed = seed_of(SEED, "rollout", step, slot)
            return await self.runner.group(dispatch.question, cfg.group_size, seed=seed, name=name)

        async def one_step() -> None:
            trainer = PolicyTrainer(cfg, self.learner, self.engine, lambda: None)
            await trainer.start()
            order = self.task.questions_of(step)
            scheduler = Scheduler(cfg, order, sample, seed=SEED, version=self.learner.num_steps)
            await train(cfg, scheduler, trainer, done=self.learner.num_steps, on_step=on_step)

        started = time.perf_counter()
        asyncio.run(one_step())
        return time.perf_counter() - started

    @property
    def trajectories(self) -> list[Trajectory]:
        """Of the last step."""
        return [t for group in self.groups for t in group.trajectories]


# --- TRL ----------------------------------------------------------------------------------------


class Tools:
    """One rollout's tools for ``environment_factory``; TRL shows all public methods."""

    def __init__(self, side: "TrlSide") -> None:
        self._side, self._number = side, next(side.num_environments)

    def reset(self, qid: str, **row: Any) -> None:
        """A fresh episode of the row's question; nothing is added to the prompt."""
        side = self._side
        slot, number = divmod(self._number, side.task.group_size)
        question = side.task.questions_of(side.step)[slot]
        assert question.qid == qid, (question.qid, qid)
        self._question = question
        self._episode = side.task.episode(question, side.step, slot, number)

    def search(self, query: str) -> str:
        """Titles, ids and excerpts of matching documents.

        Args:
            query: words to look for
        """
        return self._call("search", query=query)

    def report(self, doc_ids: list[str]) -> str:
        """Ends the task: ids of the documents, best first.

        Args:
            doc_ids: ids, each one once
        """
        return self._call("report", doc_ids=doc_ids)

    def _call(self, name: str, **arguments: Any) -> str:
        return self._step(name, arguments).shown

    def _step(self, name: str, arguments: dict[str, Any]) -> Step:
        text = self._side.task.write(name, arguments)
        return self._episode.step(text, FinishReason.STOP)

    def _reward_of(self, calls: list[Any]) -> float:
        function = calls[0]["function"]
        step = self._step(function["name"], function["arguments"])
        reported = Trajectory(
            qid=self._question.qid,
            trajectory_id="",
            token_ids=(),
            loss_mask=(),
            sampler_logprobs=(),
            policy_versions=(),
            stop_reason=StopReason.REPORTED,
            report=step.report or (),
            format_ok=not step.errors,
        )
        return reward_of(reported, self._question, RewardConfig())[0]


class ScriptedLogits(LogitsProcessor):
    """Leaves the scripted token alone possible; a row whose turn has ended is left as it is."""

    def begin_step(self, scripts: list[Script]) -> None:
        """Take the scripts of the rows."""
        self.scripts, self.turn = scripts, 0

    def begin_turn(self, prompt_length: int) -> None:
        """The next ``generate``: its prompts end at ``prompt_length``."""
        rows = [torch.tensor(script[self.turn]) for script in self.scripts]
        self.wanted_RL = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        self.prompt_length, self.turn = prompt_length, self.turn + 1

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores for the next token of every row."""
        wanted_R = self.wanted_RL[:, input_ids.shape[1] - self.prompt_length, None]
        forced_RV = torch.full_like(scores, -torch.inf).scatter_(1, wanted_R.clamp(min=0), 0.0)
        return torch.where(wanted_R >= 0, forced_RV, scores)


class TrlSide(TrainerCallback):
    """``GRPOTrainer``; between two of its steps, and outside its time, Spaniel makes one."""

    def __init__(
        self, task: Task, model: Any, tokenizer: Any, args: argparse.Namespace, directory: Path
    ) -> None:
        self.task, self.step, self.seconds = task, 0, []
        self.rollout_seconds: list[float] = []
        self.grad_norms: list[float] = []
        self.num_environments = itertools.count()
        self.logits = ScriptedLogits()
        self.rewards: list[float] = []
        self.after_step = lambda: None
        rows = [
            {
                "prompt": [
                    {"role": "system", "content": TASK},
                    {"role": "user", "content": f"Question: {question.text}"},
                ],
                "qid": question.qid,
            }
            for step in range(1, args.runs + 2)
            for question in task.questions_of(step)
        ]
        self.trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            environment_factory=lambda: Tools(self),
            reward_funcs=self.reward,
            args=trl_config(args, directory),
            callbacks=[self],
        )
        self.trainer.remove_callback(PrinterCallback)  # stdout belongs to the result
        self._watch(model)

    def _watch(self, model: Any) -> None:
        """Script the sampling, and keep what the steps make."""
        trainer, generate = self.trainer, model.generate

        def scripted_generate(**kwargs: Any) -> Any:
            self.logits.begin_turn(kwargs["input_ids"].shape[1])
            return generate(**kwargs, logits_processor=LogitsProcessorList([self.logits]))

        def kept_rollout(
            inputs: Any, rollout: Any = trainer._generate_and_score_completions
        ) -> Any:
            started = time.perf_counter()
            batch = rollout(inputs)
            self.rollout_seconds.append(time.perf_counter() - started)
            return batch

        def kept_generation(prompts: Any, make: Any = trainer._generate) -> Any:
            made = make(prompts)
            self.prompt_ids, self.completion_ids, self.tool_masks = made[:3]
            return made

        def kept_norm(*args: Any, clip: Any = trainer.accelerator.clip_grad_norm_) -> Any:
            norm = clip(*args)
            self.grad_norms.append(float(norm))
            return norm

        model.generate = scripted_generate
        trainer._generate_and_score_completions = kept_rollout
        trainer._generate = kept_generation
        trainer.accelerator.clip_grad_norm_ = kept_norm

    def reward(self, completions: Any, environments: Any, **columns: Any) -> list[float]:
        """Spaniel's reward of the report in the last message: TRL leaves that call to us."""
        self.rewards = [
            tools._reward_of(messages[-1]["tool_calls"])
            for messages, tools in zip(completions, environments, strict=True)
        ]
        return self.rewards

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The clock starts before the rollout."""
        self.step = state.global_step + 1
        self.logits.begin_step(list(self.task.scripts(self.step).values()))
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The clock stops behind the optimizer step."""
        self.seconds.append(time.perf_counter() - self.started)
        self.after_step()

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        """All ids of each trajectory of the last step."""
        pairs = zip(self.prompt_ids, self.completion_ids, strict=True)
        return [(*prompt, *completion) for prompt, completion in pairs]

    @property
    def loss_masks(self) -> list[tuple[bool, ...]]:
        """Which of them were sampled."""
        pairs = zip(self.prompt_ids, self.tool_masks, strict=True)
        return [(*[False] * len(prompt), *map(bool, mask)) for prompt, mask in pairs]


def trl_config(args: argparse.Namespace, directory: Path) -> GRPOConfig:
    trajectories = args.questions * args.group_size
    return GRPOConfig(
        output_dir=str(directory / "trl"),
        max_steps=args.runs + 1,
        per_device_train_batch_size=args.trl_batch,
        gradient_accumulation_steps=trajectories // args.trl_batch,
        num_generations=args.group_size,
        max_completion_length=4096,
        max_tool_calling_iterations=args.turns - 1,
        shuffle_dataset=False,
        remove_unused_columns=False,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        adam_beta2=BETA2,
        max_grad_norm=MAX_GRAD_NORM,
        loss_type="dapo",
        scale_rewards="none",
        beta=0.0,
        epsilon=CLIP_LOW,
        epsilon_high=CLIP_HIGH,
        temperature=1.0,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


# --- both ---------------------------------------------------------------------------------------


def load_model(args: argparse.Namespace) -> tuple[str, Any, Any]:
    """Name, model and tokenizer: the packaged weights, or random ones of that shape."""
    for name in ("spaniel-tiny", "random-tiny"):
        cfg = PolicyConfig(model=name, device="cpu", threads=args.threads)
        try:
            return name, *load_policy_model(cfg, seed=0)
        except ArtifactError:
            if name == "random-tiny":
                raise
    raise AssertionError("unreachable")


def trl_system_prompt(trl: TrlSide) -> str:
    """What TRL puts into the system message: the task and its description of the tools."""
    (prompt_ids,), _, _ = _tokenized(trl)
    text = trl.trainer.processing_class.decode(prompt_ids)
    return text.removeprefix("<|im_start|>system\n").partition("<|im_end|>")[0]


def _tokenized(trl: TrlSide) -> Any:
    trl.trainer._batch_environments = [None]
    return trl.trainer._tokenize_prompts([trl.trainer.train_dataset[0]["prompt"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trl-batch", type=int, default=4, help="sequences of a forward pass")
    parser.add_argument(
        "--microbatch-tokens", type=int, default=4096, help="tokens of a forward pass of ours"
    )
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--pages", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(args, Path(directory)), indent=2))


def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    name, model, tokenizer = load_model(args)
    _, trl_model, trl_tokenizer = load_model(args)
    trl_tokenizer.chat_template = qwen2_5_chat_template
    task = Task(args, directory, ChatRenderer(tokenizer, tool_responses=True))
    spaniel = SpanielSide(task, model, args)
    trl = TrlSide(task, trl_model, trl_tokenizer, args, directory)
    task.environment.system_prompt = trl_system_prompt(trl)
    spaniel_s: list[float] = []
    tokens: dict[str, list[int]] = defaultdict(list)

    def after_step() -> None:
        spaniel_s.append(spaniel.step())
        ours = spaniel.trajectories
        assert [t.token_ids for t in ours] == trl.token_ids, "the sides saw different tokens"
        assert [t.loss_mask for t in ours] == trl.loss_masks, "the sides train different tokens"
        assert [t.reward for t in ours] == trl.rewards, "the sides scored differently"
        rewards = [{t.reward for t in group.trajectories} for group in spaniel.groups]
        assert min(map(len, rewards)) > 1, "a group has no signal: more trajectories are needed"
        tokens["spaniel_sampled"].append(sum(t.num_sampled_tokens for t in ours))
        tokens["spaniel_all"].append(sum(len(t.token_ids) for t in ours))
        tokens["trl_sampled"].append(sum(sum(mask) for mask in trl.loss_masks))
        tokens["trl_all"].append(sum(len(ids) for ids in trl.token_ids))

    trl.after_step = after_step
    trl.trainer.train()
    ours, theirs = statistics.median(spaniel_s[1:]), statistics.median(trl.seconds[1:])
    rollout = statistics.median(m["time/rollout_s"] for m in spaniel.metrics[1:])
    update = statistics.median(m["time/update_s"] for m in spaniel.metrics[1:])
    trl_rollout = statistics.median(trl.rollout_seconds[1:])
    return {
        "what": "seconds of one GRPO step, rollout and update",
        **about(["torch", "transformers", "trl", "accelerate", "spaniel"]),
        "threads": torch.get_num_threads(),
        "model": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trajectories": args.questions * args.group_size,
        "turns": args.turns,
        "prompt_tokens": len(trl.prompt_ids[0]),
        "trl_batch": args.trl_batch,
        "spaniel_microbatch_tokens": spaniel.optimizer.microbatch_tokens,
        "spaniel_s": round(ours, 2),
        "trl_s": round(theirs, 2),
        "ratio": round(theirs / ours, 2),
        "spaniel_rollout_s": round(rollout, 2),
        "spaniel_update_s": round(update, 2),
        "trl_rollout_s": round(trl_rollout, 2),
        "trl_update_s": round(theirs - trl_rollout, 2),
        "spaniel_s_of_each": [round(s, 2) for s in spaniel_s[1:]],
        "trl_s_of_each": [round(s, 2) for s in trl.seconds[1:]],
        "warm_up_s": {"spaniel": round(spaniel_s[0], 2), "trl": round(trl.seconds[0], 2)},
        "tokens_of_each_step": {key: values[1:] for key, values in tokens.items()},
        "token_ids_identical": True,
        "grad_norms": {
            "spaniel": [round(m["grad_norm"], 5) for m in spaniel.metrics],
            "trl": [round(norm, 5) for norm in trl.grad_norms],
        },
    }


if __name__ == "__main__":
    main()
