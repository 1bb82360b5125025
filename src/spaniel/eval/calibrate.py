"""How faithful the local index is to a live search engine (``spaniel index calibrate``).

Two questions, on the same queries: does the local engine find the evidence that the live one
finds, and are its excerpts as good?
"""

import asyncio
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spaniel.config import CalibrationConfig
from spaniel.errors import ConfigError, DataError, EndpointError, ToolError
from spaniel.eval.statistics import Interval, bootstrap_interval
from spaniel.index.engine import SearchEngine, headings
from spaniel.index.live.providers import WebResult
from spaniel.index.live.urls import page_key
from spaniel.llm import LlmClient, Prompt
from spaniel.progress import track
from spaniel.store import read_records, write_records
from spaniel.types import Hit, Message, Question

MADE_BY = "spaniel index record"
PROMPT_VERSION = 1
SYSTEM = """\
Somebody searches the web and must decide from an excerpt whether a page is worth opening. You \
see a query, the page's address, and two excerpts of that page. Say which excerpt tells the \
searcher more about what the query asks for. Length and style do not count.
Answer with one word: 1, 2 or tie."""
_VERDICT = re.compile(r"\W*(?:(?:excerpt|answer)\W+)?(1|2|tie)\W*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResults:
    """What a live search engine answered to one query: a line of the recorded file."""

    query: str
    results: tuple[WebResult, ...]
    """Best first."""
    evidence: tuple[str, ...] = ()
    """Pages that help to answer the query's question: addresses, or docids of the local index."""
    qid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """One query's evidence."""

    qid: str
    query: str
    num_evidence: int
    """Evidence pages that the live engine found."""
    num_found: int
    """Of these, in the first k of the local engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the judge made of excerpt pairs of the same query and page."""

    model: str
    num_pairs: int
    """Judged in both orders."""
    local: int
    """Pairs where the local excerpt won in both orders."""
    live: int
    """Pairs where the live excerpt won in both orders."""
    ties: int
    """Pairs that were called a tie, or won by place: the orders disagree."""
    unparsable: int
    """Pairs with an answer that is no verdict; part of none of the above."""
    local_share: Interval | None
    """Local wins among wins, with an interval over queries; None without wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What ``calibrate`` measured."""

    k: int
    index_fingerprint: str
    num_queries: int
    num_unlabelled: int
    """Queries without evidence: not in the recall."""
    num_not_found: int
    """Queries whose evidence the live engine does not find, either: not in the recall."""
    num_matched: int
    """Pairs of query and page that both engines return, with an excerpt each."""
    recall: Interval | None
    """Mean evidence recall over queries; None when no query has evidence that was found."""
    judgement: Judgement | None
    queries: tuple[Recall, ...]

    def lines(self) -> list[str]:
        """A table for a person."""
        left_out = f"{self.num_unlabelled} without evidence, {self.num_not_found} not found live"
        name = f"evidence recall@{self.k}"
        if self.recall is None:
            rows = [f"{name:<20} -      no query has evidence that the live engine found"]
        else:
            r = self.recall
            rows = [
                f"{name:<20} {r.mean:.3f}  [{r.low:.3f}, {r.high:.3f}]  {r.n} queries ({left_out})"
            ]
        j = self.judgement
        if j is None:
            return [*rows, f"{'local excerpt':<20} -      not judged: set index.calibration.judge"]
        counts = (
            f"{j.local + j.live} decided, {j.ties} ties, {j.unparsable} unparsable of "
            f"{j.num_pairs} pairs"
        )
        if j.local_share is None:
            return [*rows, f"{'local excerpt':<20} -      {counts}"]
        s = j.local_share
        share = f"{s.mean:.3f}  [{s.low:.3f}, {s.high:.3f}]  preferred; {counts}"
        return [*rows, f"{'local excerpt':<20} {share}"]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


# --- recording ------------------------------------------------------------------------------


def record_live(live: SearchEngine, questions: Sequence[Question], k: int, path: Path) -> int:
    """Ask a live engine each question and write what it finds, labelled with the targets.

    What was paid for stays in the engine's cache: a recording that breaks off goes on there.

    Returns:
        Lines written.

    Raises:
        ConfigError: the key is refused, or the API does not answer; one line says why.
    """
    try:
        return write_records(
            path,
            (
                LiveResults(
                    qid=question.qid,
                    query=question.text,
                    results=_results(live, live.search(question.text, k)),
                    evidence=question.targets,
                )
                for question in track(questions, "recording", len(questions), "queries")
            ),
        )
    except ToolError as error:
        raise ConfigError(f"nothing was recorded: {error}") from error


def _results(engine: SearchEngine, hits: Sequence[Hit]) -> tuple[WebResult, ...]:
    documents = headings(engine, [hit.docid for hit in hits])
    return tuple(
        WebResult(url=d.url, title=d.title, snippet=hit.snippet)
        for d, hit in zip(documents, hits, strict=True)
    )


# --- comparing ------------------------------------------------------------------------------


def calibrate(
    engine: SearchEngine, recorded: Path, cfg: CalibrationConfig, *, k: int = 10, seed: int = 0
) -> Calibration:
    """Compare a local engine with recorded results of a live one.

    Evidence recall@k of a query: of the pages labelled as its evidence that the live engine
    returned, the share that the local engine has among its first k. Pages are matched by
    address (``page_key``), evidence that is a docid also by docid. A page that the local index
    does not hold at all is a miss. The mean is over queries with at least one such page. It says
    how much of what the live engine finds the index keeps, not how good either one is: evidence
    that the live engine misses is not counted.

    The judgement: for each pair of query and page that both engines return, the judge sees both
    excerpts, unnamed, in both orders. An excerpt is preferred when it wins both; everything else
    is a tie. Pairs with an empty excerpt are left out; equal excerpts are ties unasked.

    Args:
        recorded: JSON lines of ``LiveResults``.
        k: local hits that count, and that are matched with live results.
        seed: of the sample of pairs, and of the intervals.

    Raises:
        ArtifactError, DataError: the file is missing or broken.
        ConfigError: the judge has no key, or does not answer.
    """
    judge = _Judge(cfg) if cfg.judge is not None else None
    records = list(read_records(recorded, LiveResults))
    if not records:
        raise DataError(f"{recorded} holds no queries: run `{MADE_BY}` again")
    recalls: list[Recall] = []
    pairs: list[_Pair] = []
    unlabelled = 0
    for number, record in enumerate(track(records, "searching", len(records), "queries")):
        hits = engine.search(record.query, k)
        documents = headings(engine, [hit.docid for hit in hits])
        local = {page_key(d.url): h for d, h in zip(documents, hits, strict=True)}
        local.pop("", None)
        pairs += _pairs(number, record, local)
        if not record.evidence:
            unlabelled += 1
            continue
        recalls.append(_recall(engine, record, set(local), {hit.docid for hit in hits}))
    counted = [r for r in recalls if r.num_evidence]
    shares = [r.num_found / r.num_evidence for r in counted]
    return Calibration(
        k=k,
        index_fingerprint=engine.fingerprint,
        num_queries=len(records),
        num_unlabelled=unlabelled,
        num_not_found=len(recalls) - len(counted),
        num_matched=len(pairs),
        recall=bootstrap_interval(shares, seed=seed) if shares else None,
        judgement=judge.judgement(_sample(pairs, cfg.max_pairs, seed), seed) if judge else None,
        queries=tuple(counted),
    )


def _recall(
    engine: SearchEngine, record: LiveResults, local_pages: set[str], local_docids: set[str]
) -> Recall:
    live = {page_key(result.url) for result in record.results} - {""}
    found: dict[str, bool] = {}
    for item in record.evidence:
        page = _page_of(engine, item, record)
        if page in live:
            here = item in local_docids or page in local_pages
            found[page] = found.get(page, False) or here
    return Recall(
        qid=record.qid,
        query=record.query,
        num_evidence=len(found),
        num_found=sum(found.values()),
    )


def _page_of(engine: SearchEngine, item: str, record: LiveResults) -> str:
    """The page of a docid of the index, else of an address."""
    try:
        url = engine.read(item).url
    except KeyError:
        url = item
        if not page_key(url):
            raise DataError(
                f"evidence {item!r} of query {record.query[:60]!r} is neither an address nor a "
                "docid of the index: was it recorded for another corpus?"
            ) from None
    return page_key(url) or item


# --- judging --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    number: int
    """Of the query."""
    query: str
    url: str
    local: str
    live: str


def _pairs(number: int, record: LiveResults, local: dict[str, Hit]) -> Iterator[_Pair]:
    seen = set()
    for result in record.results:
        page = page_key(result.url)
        hit = local.get(page)
        if hit is None or page in seen:
            continue
        seen.add(page)
        mine, theirs = " ".join(hit.snippet.split()), " ".join(result.snippet.split())
        if mine and theirs:
            yield _Pair(number=number, query=record.query, url=result.url, local=mine, live=theirs)


def _sample(pairs: list[_Pair], count: int, seed: int) -> list[_Pair]:
    return pairs if len(pairs) <= count else random.Random(seed).sample(pairs, count)


class _Judge:
    """Asks the model."""

    def __init__(self, cfg: CalibrationConfig) -> None:
        assert cfg.judge is not None
        self._cfg, self._model = cfg, cfg.judge.model
        self._client = LlmClient(cfg.judge)

    def judgement(self, pairs: Sequence[_Pair], seed: int) -> Judgement:
        """All pairs, judged and counted."""
        verdicts = asyncio.run(self._all(pairs))
        counts = {name: verdicts.count(name) for name in ("local", "live", "tie", "")}
        wins: dict[int, list[float]] = {}
        for pair, verdict in zip(pairs, verdicts, strict=True):
            if verdict in ("local", "live"):
                wins.setdefault(pair.number, []).append(float(verdict == "local"))
        return Judgement(
            model=self._model,
            num_pairs=len(pairs),
            local=counts["local"],
            live=counts["live"],
            ties=counts["tie"],
            unparsable=counts[""],
            local_share=share_interval(list(wins.values()), seed=seed) if wins else None,
        )

    async def _all(self, pairs: Sequence[_Pair]) -> list[str]:
        tasks = [asyncio.ensure_future(self._verdict(pair)) for pair in pairs]
        try:
            return list(await asyncio.gather(*tasks))
        except EndpointError as error:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise ConfigError(f"the judge {self._model} gave no answer: {error}") from error
        finally:
            await self._client.close()

    async def _verdict(self, pair: _Pair) -> str:
        """``local``, ``live``, ``tie``, or "" when an answer is no verdict."""
        if pair.local == pair.live:
            return "tie"
        first = await self._ask(pair, pair.local, pair.live)
        second = await self._ask(pair, pair.live, pair.local)
        if not first or not second:
            return ""
        return {("1", "2"): "local", ("2", "1"): "live"}.get((first, second), "tie")

    async def _ask(self, pair: _Pair, one: str, two: str) -> str:
        asked = f"Query: {pair.query}\nPage: {pair.url}\n\nExcerpt 1: {one}\n\nExcerpt 2: {two}"
        messages = (Message(role="system", content=SYSTEM), Message(role="user", content=asked))
        reply = await self._client.ask(
            Prompt(messages=messages, max_tokens=self._cfg.max_tokens, temperature=0.0)
        )
        match = _VERDICT.fullmatch(reply.text)
        return match[1].lower() if match else ""


def share_interval(
    groups: Sequence[Sequence[float]], *, samples: int = 2000, seed: int = 0
) -> Interval:
    """The mean of all values with its 95 % bootstrap interval, resampling whole groups.

    Values of one group (pairs of one query) are not independent, so groups are drawn again.

    Args:
        groups: at least one, none empty.
    """
    sums = np.array([sum(group) for group in groups])
    sizes = np.array([len(group) for group in groups])
    drawn = np.random.default_rng(seed).integers(0, len(groups), (samples, len(groups)))
    shares = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.percentile(shares, [2.5, 97.5])
    return Interval(
        mean=float(sums.sum() / sizes.sum()), low=float(low), high=float(high), n=len(groups)
    )
