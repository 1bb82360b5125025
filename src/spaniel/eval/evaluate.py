"""One table: every system on the same held-out questions, and everything needed to believe it."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spaniel import __version__
from spaniel.env.episode import Environment
from spaniel.errors import ArtifactError, ConfigError, SpanielError
from spaniel.eval.baselines import Lists, bm25_lists, searched_lists
from spaniel.eval.bill import Bill, QueryUse, StageUse, bill_lines, make_bill
from spaniel.eval.examples import choose_examples
from spaniel.eval.report import Curve, ReportData, write_report
from spaniel.eval.results import EvalProtocol, build_results, write_results
from spaniel.eval.rows import SystemResult, from_fused, from_groups, from_lists
from spaniel.eval.runs import write_qrels, write_run
from spaniel.eval.table import format_table
from spaniel.index.fusion import rrf
from spaniel.index.rerank import RerankedEngine
from spaniel.index.trained_on import refuse_if_trained_on
from spaniel.progress import say
from spaniel.rollout import Runner, seed_of
from spaniel.run import commit
from spaniel.store import hash_records, iter_lines, read_json, write_records, write_text
from spaniel.types import Group, Question

if TYPE_CHECKING:
    from spaniel.workbench import Workbench

NUM_TIMED = 5
"""Questions rolled out one at a time, to measure what a single user waits."""
BYTES_PER_TOKEN = 5


class Evaluation:
    """Runs the systems of one recipe and collects their results."""

    def __init__(self, bench: "Workbench") -> None:
        self.bench, self.cfg = bench, bench.recipe.eval
        self.questions = bench.test_questions
        self.directory = bench.run.path("eval")
        self.results: list[SystemResult] = []
        self.not_run: dict[str, str] = {}
        self.groups: dict[str, list[Group]] = {}
        self.query_machine_s = 0.0

    # -- classical systems -----------------------------------------------------------------

    def classical(self) -> None:
        """BM25; vector, hybrid and reranked search where sentence-transformers is installed."""
        self._lists("bm25", bm25_lists(self.bench.lexical, self.questions, self.cfg.k))
        try:
            dense = self.bench.dense
        except ConfigError as error:
            for system in ("vector", "hybrid", "vector+reranker"):
                self.not_run[system] = str(error)
            return
        self._lists("vector", searched_lists(dense, self.questions, self.cfg.k))
        self._lists("hybrid", searched_lists(self.bench.hybrid, self.questions, self.cfg.k))
        self._lists("vector+reranker", self._reranked())
        if self.bench.recipe.index.rerank is not None:
            own = searched_lists(self.bench.engine, self.questions, self.cfg.k)
            self._lists("search+reranker", own)

    def _reranked(self) -> Lists:
        from spaniel.eval.baselines import tuned_reranker

        cfg = self.bench.recipe.index
        if cfg.rerank is not None:
            reranked = RerankedEngine(self.bench.dense, self.bench.reranker, cfg.rerank_candidates)
            return searched_lists(reranked, self.questions, self.cfg.k)
        engine = tuned_reranker(
            self.bench.dense,
            self.bench.sample(
                self.bench.train_questions, self.cfg.rerank_train_questions, "reranker"
            ),
            self.directory / "reranker",
            candidates=self.cfg.rerank_candidates,
            seed=seed_of(self.bench.recipe.seed, "reranker"),
        )
        return searched_lists(engine, self.questions, self.cfg.k)

    def _lists(self, system: str, found: Lists) -> None:
        result = from_lists(
            system,
            found.lists,
            self.questions,
            k=self.cfg.k,
            latency_s=found.latency_s,
            made_by=found.made_by,
        )
        self._add(result, {qid: list(docids) for qid, docids in found.lists.items()})

    # -- policies --------------------------------------------------------------------------

    def policy(self, system: str, stage: str | None) -> None:
        """One state of the policy: several rollouts of every question."""
        bench = self.bench
        if stage is not None:
            bench.load_stage_weights(stage)
        asyncio.run(bench.policy.load(bench.policy.version + 1, bench.sampler_weights()))
        runner = bench.runner(bench.policy, bench.renderer, temperature=self.cfg.temperature)
        started = time.perf_counter()
        groups = self._roll(system, runner, self.questions, self.cfg.num_fused)
        self.query_machine_s = (time.perf_counter() - started) / (
            len(self.questions) * self.cfg.num_fused
        )
        made_by = {"stage": stage or "start", "temperature": self.cfg.temperature}
        result = from_groups(system, groups, made_by=made_by)
        self._add(self._timed(result, runner, 1), _first_reports(groups))
        self.groups[system] = groups
        self.runner = runner

    def fused(self) -> None:
        """The trained policy's rollouts of a question, fused by reciprocal rank (k = 60)."""
        groups = self.groups["policy-rl"]
        system = f"policy-rl-rrf{self.cfg.num_fused}"
        result = from_fused(system, groups, fuse_reports, made_by={"rollouts": self.cfg.num_fused})
        reports = {
            g.question.qid: fuse_reports([t.report for t in g.scored]) for g in groups if g.scored
        }
        self._add(self._timed(result, self.runner, self.cfg.num_fused), reports)

    def frontier(self) -> None:
        """An API model that drives the same tools, where an endpoint is configured."""
        cfg = self.cfg.endpoint
        if cfg is None:
            self.not_run["api:frontier"] = "no endpoint is configured (eval.endpoint)"
            return
        from spaniel.policy.openai import EndpointPolicy
        from spaniel.renderer import ByteRenderer

        system = f"api:{cfg.model}"
        try:
            policy = EndpointPolicy(cfg, ByteRenderer())
            # The ledger of a text policy counts bytes, its budgets are given in tokens.
            env = self.bench.recipe.env
            budgets = {
                "max_tokens": BYTES_PER_TOKEN * env.max_tokens,
                "max_tokens_per_turn": BYTES_PER_TOKEN * env.max_tokens_per_turn,
            }
            environment = Environment(self.bench.engine, env.model_copy(update=budgets))
            runner = Runner(
                policy,
                ByteRenderer(),
                environment,
                self.bench.recipe.reward,
                temperature=self.cfg.temperature,
            )
            groups = self._roll(system, runner, self.questions, 1)
        except SpanielError as error:
            self.not_run[system] = str(error)
            return
        made_by = {"usd": policy.usage.usd, "tokens": "as the endpoint counted them"}
        result = from_groups(system, groups, usage=policy.tokens_of, made_by=made_by)
        self._add(result, _first_reports(groups))

    def _roll(
        self, system: str, runner: Runner, questions: Sequence[Question], size: int
    ) -> list[Group]:
        groups = asyncio.run(
            runner.groups(
                questions,
                size,
                seed=seed_of(self.bench.recipe.seed, "eval"),
                what=system,
                concurrency=self.bench.concurrency,
            )
        )
        trajectories = (t for g in groups for t in g.trajectories)
        write_records(self.directory / "trajectories" / f"{system}.jsonl", trajectories)
        return groups

    def _timed(self, result: SystemResult, runner: Runner, size: int) -> SystemResult:
        """Latency of one user alone, ``size`` rollouts a question: those of a whole evaluation
        wait for each other."""
        questions = self.bench.sample(self.questions, NUM_TIMED, "timed")

        async def one_at_a_time() -> float:
            started = time.perf_counter()
            for question in questions:
                await runner.group(question, size, seed=0, name=f"timed/{question.qid}")
            return (time.perf_counter() - started) / len(questions)

        seconds = asyncio.run(one_at_a_time())
        return replace(result, rows=tuple(replace(r, latency_s=seconds) for r in result.rows))

    def _add(self, result: SystemResult, lists: dict[str, list[str]]) -> None:
        self.results.append(result)
        write_run(self.directory / "runs" / f"{result.system}.trec", lists, tag=result.system)


def evaluate(bench: "Workbench") -> dict[str, Any]:
    """Run every system, write ``results.json``, TREC runs and ``report.html``; print the table.

    Raises:
        ArtifactError: nothing is trained yet and no baseline could run, a run to compare with
            has no training curve, or encoder or reranker learned from a held-out question.
    """
    run, recipe = bench.run, bench.recipe
    curves = training_curves(run.directory, recipe.eval.compare_with)
    evaluation = Evaluation(bench)
    for model in filter(None, (recipe.index.encoder, recipe.index.rerank)):
        refuse_if_trained_on(model, evaluation.questions)
    targets = {q.qid: q.targets for q in evaluation.questions}
    write_qrels(evaluation.directory / "qrels.txt", targets)
    evaluation.classical()
    evaluation.policy("policy-start", None)
    for stage in ("sft", "rl"):
        if run.is_done(stage):
            evaluation.policy(f"policy-{stage}", stage)
        else:
            evaluation.not_run[f"policy-{stage}"] = f"stage {stage} is not done"
    if "policy-rl" in evaluation.groups:
        evaluation.fused()
    evaluation.frontier()
    results = build_results(
        evaluation.results,
        protocol=_protocol(bench),
        not_run=evaluation.not_run,
        bootstrap_samples=recipe.eval.bootstrap_samples,
        seed=recipe.seed,
    )
    write_results(evaluation.directory / "results.json", results)
    table = format_table(results)
    write_text(evaluation.directory / "table.txt", table + "\n")
    write_text(evaluation.directory / "table.md", format_table(results, markdown=True) + "\n")
    bill = _bill(bench, evaluation)
    _report(bench, evaluation, results, bill, curves)
    print(table)
    for line in bill_lines(bill):
        print(line)
    say(f"report: {evaluation.directory / 'report.html'}")
    return {"systems": [r["system"] for r in results["rows"]]}


def fuse_reports(reports: Sequence[Sequence[str]]) -> list[str]:
    """Reports of parallel rollouts as one list (A12), as long as their median report.

    Reciprocal rank fusion alone would return the union; a list nobody asked to be that long
    pays for it in precision.
    """
    sizes = sorted(len(report) for report in reports)
    fused = [docid for docid, _ in rrf([list(r) for r in reports], k=60)]
    return fused[: sizes[len(sizes) // 2]]


def _first_reports(groups: Sequence[Group]) -> dict[str, list[str]]:
    return {g.question.qid: list(g.scored[0].report) for g in groups if g.scored}


def _protocol(bench: "Workbench") -> EvalProtocol:
    recipe, run = bench.recipe, bench.run
    dump = recipe.model_dump(mode="json")
    return EvalProtocol(
        recipe=recipe.name,
        corpus_hash=run.outputs("corpus")["hash"],
        num_documents=run.outputs("index")["num_documents"],
        index_fingerprint=bench.engine.fingerprint,
        questions_hash=hash_records(bench.test_questions),
        num_questions=len(bench.test_questions),
        system_prompt=bench.environment.system_prompt,
        tools=f"{recipe.env.dialect}: search, read, report",
        k=recipe.eval.k,
        temperature=recipe.eval.temperature,
        seed=recipe.seed,
        version=f"{__version__} {commit()}".strip(),
        settings={
            name: dump[name] for name in ("env", "reward", "policy", "index", "sft", "rl", "eval")
        },
    )


def _bill(bench: "Workbench", evaluation: Evaluation) -> Bill:
    run = bench.run
    stages = [
        StageUse(stage=name, machine_s=run.seconds(name))
        for name in ("corpus", "index", "demonstrations", "sft", "preflight", "rl")
        if run.is_done(name)
    ]
    last = next(r for r in reversed(evaluation.results) if r.system in evaluation.groups)
    rows = last.rows
    use = QueryUse(
        prompt_tokens=sum(r.prompt_tokens for r in rows) / len(rows),
        completion_tokens=sum(r.completion_tokens for r in rows) / len(rows),
        latency_s=sum(r.latency_s for r in rows) / len(rows),
        machine_s=evaluation.query_machine_s,
    )
    return make_bill(stages, use, bench.recipe.eval.prices)


def _report(
    bench: "Workbench",
    evaluation: Evaluation,
    results: dict[str, Any],
    bill: Bill,
    curves: tuple[Curve, ...],
) -> None:
    run = bench.run
    best = evaluation.groups.get("policy-rl") or next(reversed(evaluation.groups.values()))
    pairs = [(g.question, t) for g in best for t in g.scored]
    shown = {d for _, t in pairs for turn in t.turns for d in (h.docid for h in turn.hits)}
    shown |= {d for q in evaluation.questions for d in q.targets}
    titles = {d.docid: d.title for d in bench.engine.read_batch(sorted(shown))}
    preflight = run.path("preflight", "report.json")
    data = ReportData(
        title=f"Spaniel: {bench.recipe.name}",
        lead=(
            f"{len(evaluation.questions)} held-out questions over "
            f"{results['protocol']['num_documents']:,} documents."
        ),
        results=results,
        curves=curves,
        examples=choose_examples(pairs, titles),
        bill=bill,
        preflight=_preflight_summary(preflight) if preflight.exists() else {},
    )
    write_report(evaluation.directory / "report.html", data)


def training_curves(directory: Path, others: Sequence[Path]) -> tuple[Curve, ...]:
    """What RL logged in this run and in others, each under the name of its run.

    Raises:
        ArtifactError: one of the others has no log of RL.
    """
    curves = []
    for run in (directory, *others):
        path = run / "rl" / "metrics.jsonl"
        if path.exists():
            rows = tuple(row for _, row in iter_lines(path))
            curves.append(Curve(name=run.name, metrics=rows))
        elif run != directory:
            raise ArtifactError(f"eval.compare_with: {path} is missing: no RL was run there")
    return tuple(curves)


def _preflight_summary(path: Path) -> dict[str, Any]:
    report = read_json(path)
    names = ("num_candidates", "num_kept", "without_variance", "causes", "by_hops")
    return {name: report[name] for name in names}
