"""``spaniel index serve`` under many clients: answers, latency, memory.

    python bench/server_load.py [--clients 64] [--seconds 60] [--documents 10000] [--runs 1]
        [--threads 4] [--waiting 256] [--data FOLDER]

The command line builds an index of so many Wikipedia passages and serves it; another process holds
the clients, asynchronous and without pauses: each searches (10 hits with excerpts) and after every
third search reads the first hit. A 429 is counted and asked again after the server's
``Retry-After``. Both processes share the machine's cores, so queries a second are a lower bound of
what the server can do. ``server_rss_mib`` are that of the server, at the start, after 10 s (or half
of the time) and at the end. Prints one JSON object.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine import about
from search_data import DATA, all_questions, passages, queries, real_passages

RECIPE = """
name = "load"
[corpus.source]
type = "jsonl"
corpus = "documents.jsonl"
"""
ALIVE_S = 60
"""Longest wait for the server to say its address."""


def prepare(size: int, data: Path, work: Path) -> None:
    """The documents, the queries, and an index that the command line built."""
    real = real_passages(data)
    with (work / "documents.jsonl").open("w", encoding="utf-8") as file:
        for d in passages(size, real):
            row = {"docid": d.docid, "title": d.title, "text": d.text}
            file.write(json.dumps(row) + "\n")
    asked = queries(4_000, real[:20_000], all_questions(data))
    (work / "queries.json").write_text(json.dumps(asked), encoding="utf-8")
    (work / "load.toml").write_text(RECIPE, encoding="utf-8")
    subprocess.run(command("index", "build", "load.toml"), cwd=work, check=True)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "spaniel", *arguments]


@contextmanager
def serving(work: Path, options: list[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server with its address; stopped at the end, gracefully."""
    log = work / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen(
            command("index", "serve", "load.toml", "--port", "0", *options),
            cwd=work,
            stderr=file,
            text=True,
        )
        try:
            yield _address(log, server), server
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=40)
        finally:
            server.kill()
            server.wait()


def _address(log: Path, server: subprocess.Popen[str]) -> str:
    deadline = time.monotonic() + ALIVE_S
    while time.monotonic() < deadline and server.poll() is None:
        found = re.search(r"at (http://\S+)", log.read_text())
        if found:
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")


# --- the clients, in a process of their own -----------------------------------------------------


async def all_clients(url: str, asked: list[str], number: int, seconds: float) -> dict[str, Any]:
    import httpx

    times: dict[str, list[float]] = {"/search": [], "/read": []}
    statuses: Counter[str] = Counter()
    until = time.monotonic() + seconds

    async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
        while True:
            started = time.perf_counter()
            try:
                response = await client.post(path, json=body)
            except httpx.HTTPError as error:
                statuses[type(error).__name__] += 1
                return None
            statuses[str(response.status_code)] += 1
            if response.status_code != 429:
                break
            await asyncio.sleep(float(response.headers["retry-after"]))
        times[path].append(time.perf_counter() - started)
        return response.json() if response.status_code == 200 else None

    async def one_client(client: httpx.AsyncClient, first: int) -> None:
        turn = first
        while time.monotonic() < until:
            query = asked[turn % len(asked)]
            answer = await ask(client, "/search", {"queries": [query], "k": 10})
            hits = answer["results"][0] if answer else []
            if hits and turn % 3 == 0:
                await ask(client, "/read", {"docids": [hits[0]["docid"]]})
            turn += 1

    limits = httpx.Limits(max_connections=number, max_keepalive_connections=number)
    begun = time.monotonic()
    async with httpx.AsyncClient(
        base_url=url, limits=limits, timeout=30, trust_env=False
    ) as client:
        await asyncio.gather(*(one_client(client, 61 * i) for i in range(number)))
    took = time.monotonic() - begun
    return {
        "answers": dict(statuses),
        "errors": sum(n for status, n in statuses.items() if status not in ("200", "429")),
        "searches_per_s": round(len(times["/search"]) / took, 1),
        **{
            f"{path[1:]}_{name}_ms": round(1e3 * sorted(values)[int(q * (len(values) - 1))], 1)
            for path, values in times.items()
            if values
            for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
    }


# --- the run ------------------------------------------------------------------------------------


def load(url: str, server: subprocess.Popen[str], work: Path, args: argparse.Namespace) -> Any:
    """What the clients saw, and the server's memory and processor time meanwhile."""
    clients = [sys.executable, __file__, "--clients", str(args.clients)]
    clients += ["--seconds", str(args.seconds), "--ask", url, str(work / "queries.json")]
    memory = [rss_mib_of(server.pid)]
    cpu = cpu_s_of(server.pid)
    with subprocess.Popen(clients, stdout=subprocess.PIPE, text=True) as asking:
        time.sleep(min(10.0, args.seconds / 2))
        memory.append(rss_mib_of(server.pid))
        out, _ = asking.communicate()
    if asking.returncode:
        raise RuntimeError("the clients failed")
    memory.append(rss_mib_of(server.pid))
    return {
        **json.loads(out),
        "server_rss_mib": [round(m, 1) for m in memory],
        "server_cpu_s": round(cpu_s_of(server.pid) - cpu, 1),
    }


def rss_mib_of(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def cpu_s_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=4, help="of the server")
    parser.add_argument("--waiting", type=int, default=256, help="requests that may wait there")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask:
        asked = json.loads(Path(args.ask[1]).read_text(encoding="utf-8"))
        print(json.dumps(asyncio.run(all_clients(args.ask[0], asked, args.clients, args.seconds))))
        return
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        options = ["--threads", str(args.threads), "--waiting", str(args.waiting)]
        prepare(args.documents, args.data, work)
        runs = []
        for _ in range(args.runs):
            with serving(work, options) as (url, server):
                runs.append(load(url, server, work, args))
    report = {
        "what": "one index over HTTP under concurrent clients",
        **about(["spaniel", "starlette", "uvicorn", "httpx", "tantivy"]),
        "clients": args.clients,
        "seconds": args.seconds,
        "documents": args.documents,
        "server": " ".join(options),
        "searches_per_s": statistics.median(run["searches_per_s"] for run in runs),
        "runs": runs,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
