"""``report.html``: one file that shows a whole run. No script, no request to anywhere.

The content security policy forbids everything but the inline style sheet, so even text that
got past the escaping could not load or run anything.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from spaniel.eval.bill import Bill, bill_lines
from spaniel.eval.charts import Bar, Series, bar_panel, legend, line_panel
from spaniel.eval.examples import Example, example_section
from spaniel.eval.formats import NONE, duration, fixed, interval, p_value, signed, usd
from spaniel.eval.markup import Markup, el, facts, join, table
from spaniel.eval.results import COMPARED, QUALITY
from spaniel.eval.statistics import false_alarm_chance
from spaniel.eval.table import LABELS, best_values, by_pair
from spaniel.store import write_text

CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'none'; base-uri 'none'; "
    "form-action 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart over the steps of a training run."""

    key: str
    """Name of the metric in ``metrics.jsonl``."""
    title: str


PANELS = (
    Panel(key="reward/mean", title="Mean reward"),
    Panel(key="reward/ndcg", title="nDCG of the rollouts"),
    Panel(key="completion_tokens/mean", title="Completion tokens per rollout"),
    Panel(key="calls/mean", title="Tool calls per rollout"),
    Panel(key="advantage/token_mean", title="Mean advantage per token"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The metrics of one training run."""

    name: str
    metrics: tuple[Mapping[str, Any], ...]
    """One dict a step, with ``step`` and metric keys; values that are missing, null or not
    finite are left out of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything the report shows. Empty parts are left out."""

    title: str
    results: Mapping[str, Any]
    """``results.json``."""
    lead: str = ""
    """One sentence under the title."""
    curves: tuple[Curve, ...] = ()
    """Several are drawn over each other: the ablation figure."""
    panels: tuple[Panel, ...] = PANELS
    examples: tuple[Example, ...] = ()
    bill: Bill | None = None
    preflight: Mapping[str, Any] = field(default_factory=dict)
    """Summary of the pre-flight: plain data, shown by name."""
    notes: tuple[str, ...] = ()
    """What a reader should know before believing the numbers."""


def write_report(path: Path, data: ReportData) -> None:
    """Write the page whole or not at all."""
    write_text(path, render_report(data))


def render_report(data: ReportData) -> str:
    """The page as text."""
    sections = [
        ("results", "Results", _results(data)),
        ("hops", "By number of hops", _segments(data.results, "by_hops", "hops")),
        ("kinds", "By kind of question", _segments(data.results, "by_kind", "")),
        ("funnel", "Where targets are lost", _funnel(data.results)),
        ("behaviour", "Behaviour", _behaviour(data.results)),
        ("training", "Training", _training(data)),
        ("examples", "Examples", [example_section(e) for e in data.examples]),
        ("bill", "The bill", _bill(data.bill) if data.bill else []),
        ("preflight", "Pre-flight", [facts(data.preflight)] if data.preflight else []),
        ("protocol", "Protocol", _protocol(data.results)),
    ]
    shown = [(key, name, parts) for key, name, parts in sections if parts]
    links = [el("li", el("a", name, href=f"#{key}")) for key, name, _ in shown]
    lead = [el("p", data.lead, cls="lead")] if data.lead else []
    header = el("header", el("h1", data.title), *lead, el("nav", el("ul", *links)))
    body = [
        el("section", el("h2", name), *parts, id=key, aria_label=name) for key, name, parts in shown
    ]
    return _page(data.title, [header, el("main", *body)])


def _page(title: str, body: Sequence[Markup]) -> str:
    style = files("spaniel.eval").joinpath("report.css").read_text(encoding="utf-8")
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=CSP),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        # The style sheet is part of the package, the one text here that is not escaped.
        el("style", Markup(style)),
    )
    return "<!doctype html>\n" + el("html", head, el("body", *body), lang="en") + "\n"


# --- results ------------------------------------------------------------------------------


def _results(data: ReportData) -> list[Markup]:
    notes = [el("li", note) for note in [*data.notes, *_warnings(data.results)]]
    parts = [_result_table(data.results)]
    parts += [el("ul", *notes, cls="notes")] if notes else []
    panels = [_interval_panel(data.results["rows"], name) for name in COMPARED]
    parts.append(el("div", *[panel for panel in panels if panel], cls="panels wide"))
    return parts + _comparisons(data.results["comparisons"])


def _interval_panel(rows: Sequence[Mapping[str, Any]], name: str) -> Markup | None:
    bars = [
        Bar(
            name=row["system"],
            value=row[name],
            low=row[f"{name}_ci"][0],
            high=row[f"{name}_ci"][1],
            ours=is_ours(row["system"]),
        )
        for row in rows
        if row[f"{name}_ci"]
    ]
    return bar_panel(f"{LABELS[name]} with 95 % interval", bars, width=400) if bars else None


def _result_table(results: Mapping[str, Any]) -> Markup:
    best = best_values(results["rows"])
    header = ["System", "n", *LABELS.values(), "Searches", "Reads", "Tokens", "Seconds"]
    body: list[list[str]] = []
    for row in results["rows"]:
        cells = [el("span", row["system"], cls="us" if is_ours(row["system"]) else "them")]
        body.append([*cells, str(row["n"]), *[_quality(row, name, best) for name in QUALITY]])
        tokens = row["completion_tokens"]
        body[-1] += [fixed(row["searches"], 1), fixed(row["reads"], 1)]
        body[-1] += [fixed(tokens, 0) if tokens else NONE, fixed(row["latency_s"], 2)]
    caption = "Means over the same held-out questions; ▲ marks the best of a column."
    return table(header, body, caption=caption)


def _quality(row: Mapping[str, Any], name: str, best: Mapping[str, str]) -> Markup:
    text = fixed(row[name])
    value = el("strong", text, cls="best") if text == best.get(name) else join([text])
    bounds = row.get(f"{name}_ci")
    return join([value, el("span", interval(bounds), cls="ci")]) if bounds else value


def _warnings(results: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{row['system']}: {row['failed']} rollouts failed by the infrastructure, in no mean."
        for row in results["rows"]
        if row["failed"]
    ]
    lines += [f"Not run: {left['system']}: {left['reason']}" for left in results["not_run"]]
    if results.get("non_finite"):
        lines.append(f"{results['non_finite']} values were not finite and are left out.")
    return lines


def _comparisons(comparisons: Sequence[Mapping[str, Any]]) -> list[Markup]:
    if not comparisons:
        return []
    measures = list(dict.fromkeys(c["metric"] for c in comparisons))
    body = []
    for tests in by_pair(comparisons):
        found = {c["metric"]: c for c in tests}
        cells = [_test(found[m]) if m in found else join([NONE]) for m in measures]
        body.append([f"{tests[0]['a']} vs {tests[0]['b']}", *cells, str(tests[0]["n"])])
    header = ["Systems", *[f"Difference in {LABELS[m]}" for m in measures], "n"]
    note = (
        "p is the chance of a difference at least this large, in either direction, if the two "
        "systems were interchangeable on every question (paired permutation test). With "
        f"{len(comparisons)} tests of equal systems, some p falls below 0.05 with a chance of up "
        f"to {false_alarm_chance(len(comparisons)):.0%}. Intervals and tests are over questions; "
        "another training seed may move a trained policy by more."
    )
    return [table(header, body, caption="Paired comparisons"), el("p", note, cls="soft")]


def _test(comparison: Mapping[str, Any]) -> Markup:
    value = el("strong", signed(comparison["difference"]))
    detail = f"{interval(comparison['ci'])}, {p_value(comparison['p'])}"
    return join([value, el("span", detail, cls="ci")])


def _segments(results: Mapping[str, Any], key: str, unit: str) -> list[Markup]:
    """One bar panel for each segment: nDCG of every system on those questions."""
    sizes: dict[str, int] = {}
    for row in results["rows"]:
        for segment, cell in row[key].items():
            sizes[segment] = max(sizes.get(segment, 0), cell["n"])
    panels = []
    for segment in sorted(sizes, key=lambda s: (s == "unknown", len(s), s)):
        bars = [
            Bar(name=row["system"], value=row[key][segment]["ndcg"], ours=is_ours(row["system"]))
            for row in results["rows"]
            if row[key].get(segment, {}).get("ndcg") is not None
        ]
        name = f"{segment} {unit}".strip() if segment != "unknown" else segment
        panels.append(bar_panel(f"nDCG, {name} (n = {sizes[segment]})", bars))
    return [el("div", *panels, cls="panels")] if panels else []


FUNNEL_LABELS = {
    "shown": "Shown by a search",
    "read": "Read",
    "reported": "Reported",
    "first_search": "First search shows one",
    "choice": "Shown: it is read next",
    "later_search": "One read: next search shows another",
}


def _funnel(results: Mapping[str, Any]) -> list[Markup]:
    """Shares of all targets, then how often single steps go well."""
    body = []
    for row in results["rows"]:
        if row["funnel"]:
            rates = [row["funnel"][step]["rate"] for step in FUNNEL_LABELS]
            body.append([row["system"], *[NONE if r is None else f"{r:.0%}" for r in rates]])
    if not body:
        return []
    header = ["System", *FUNNEL_LABELS.values()]
    return [table(header, body, caption="Of all targets, and of single steps")]


def _behaviour(results: Mapping[str, Any]) -> list[Markup]:
    """How rollouts ended, and how those without any search scored."""
    body = []
    for row in results["rows"]:
        if not row["stops"]:
            continue
        total = sum(row["stops"].values())
        skipped = row["by_searched"].get("no", {"n": 0, "ndcg": None})
        body.append(
            [
                row["system"],
                str(row["num_rollouts"]),
                ", ".join(f"{stop} {n / total:.0%}" for stop, n in row["stops"].items()),
                fixed(row["num_returned"], 1),
                f"{skipped['n'] / row['n']:.0%}",
                fixed(skipped["ndcg"]),
            ]
        )
    if not body:
        return []
    header = ["System", "Rollouts", "Ended by", "Reported", "Searched nothing", "nDCG of those"]
    return [table(header, body, caption="How the rollouts went")]


def _protocol(results: Mapping[str, Any]) -> list[Markup]:
    made_by = {row["system"]: row["made_by"] for row in results["rows"] if row["made_by"]}
    parts = [facts(results["protocol"])]
    return [*parts, el("h3", "Systems"), facts(made_by)] if made_by else parts


# --- training and bill --------------------------------------------------------------------


def _training(data: ReportData) -> list[Markup]:
    charts = []
    for panel in data.panels:
        series = [Series(name=c.name, points=points_of(c, panel.key)) for c in data.curves]
        if any(s.points for s in series):
            charts.append(line_panel(panel.title, series))
    if not charts:
        return []
    names = [legend([curve.name for curve in data.curves])] if len(data.curves) > 1 else []
    return [*names, el("div", *charts, cls="panels")]


def points_of(curve: Curve, key: str) -> tuple[tuple[float, float], ...]:
    """(step, value) of one metric, where it is a finite number."""
    points = []
    for metrics in curve.metrics:
        step, value = metrics.get("step"), metrics.get(key)
        if isinstance(step, int) and isinstance(value, (int, float)) and math.isfinite(value):
            points.append((float(step), float(value)))
    return tuple(points)


def _bill(bill: Bill) -> list[Markup]:
    body = [
        [
            stage.stage,
            duration(stage.machine_s),
            f"{stage.tokens:,}" if stage.tokens else NONE,
            usd(stage.machine_s / 3600 * bill.machine_usd_per_hour),
        ]
        for stage in bill.stages
    ]
    stages = [table(["Stage", "Time", "Tokens", "Cost"], body, caption="Training")] if body else []
    return [*stages, el("ul", *[el("li", line) for line in bill_lines(bill)])]


def is_ours(system: str) -> bool:
    """True for the policies, which charts draw in the accent colour."""
    return system.startswith("policy-")
