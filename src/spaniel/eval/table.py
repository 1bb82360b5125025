"""The table of ``results.json`` as text, for the terminal and for a README."""

from collections.abc import Mapping, Sequence
from typing import Any

from spaniel.eval.formats import NONE, fixed, interval, p_value, signed
from spaniel.eval.results import QUALITY
from spaniel.eval.statistics import false_alarm_chance

LABELS = {"ndcg": "nDCG", "recall": "Recall", "precision": "Precision", "f1": "F1"}
HEADER = ("System", "n", *LABELS.values(), "Searches", "Reads", "Tokens", "s/question")


def format_table(results: Mapping[str, Any], *, markdown: bool = False) -> str:
    """Aligned columns, intervals, the best of each quality column marked, tests below.

    Args:
        results: what ``build_results`` returns, or ``results.json`` read back.
        markdown: pipes around the columns and ``**best**``; else plain text and ``*best``.
    """
    best = best_values(results["rows"])
    body = [_cells(row, best, markdown) for row in results["rows"]]
    lines = _pipes([HEADER, *body]) if markdown else _columns([HEADER, *body])
    notes = footer(results)
    if markdown:
        notes = [f"- {note}" for note in notes]
    return "\n".join([*lines, "", *notes]) + "\n"


def best_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The highest value of each quality column as written; all that print it are marked."""
    found = {name: [row[name] for row in rows if row[name] is not None] for name in QUALITY}
    return {name: fixed(max(values)) for name, values in found.items() if values}


def footer(results: Mapping[str, Any]) -> list[str]:
    """One line a fact: failed rollouts, paired tests and how to read them, systems not run."""
    lines = [
        f"{row['system']}: {row['failed']} rollouts failed by the infrastructure, in no mean"
        for row in results["rows"]
        if row["failed"]
    ]
    lines += [comparison_line(tests) for tests in by_pair(results["comparisons"])]
    count = len(results["comparisons"])
    if count:
        lines.append(
            "intervals: 95 % bootstrap over questions; p: two-sided paired permutation test; "
            f"if no system differed, {count} such tests would show a p < 0.05 with a chance of "
            f"up to {false_alarm_chance(count):.0%}"
        )
    lines += [f"not run: {left['system']}: {left['reason']}" for left in results["not_run"]]
    if results.get("non_finite"):
        lines.append(f"{results['non_finite']} values were not finite and are left out")
    return lines


def by_pair(comparisons: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The comparisons of one pair of systems together, in the given order."""
    pairs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for comparison in comparisons:
        pairs.setdefault((comparison["a"], comparison["b"]), []).append(comparison)
    return list(pairs.values())


def comparison_line(tests: Sequence[Mapping[str, Any]]) -> str:
    """``policy-rl vs bm25: nDCG +0.123 [0.080, 0.170], p < 0.001; F1 ... (n = 200)``."""
    parts = [
        f"{LABELS[t['metric']]} {signed(t['difference'])} {interval(t['ci'])}, {p_value(t['p'])}"
        for t in tests
    ]
    return f"{tests[0]['a']} vs {tests[0]['b']}: {'; '.join(parts)} (n = {tests[0]['n']})"


def _cells(row: Mapping[str, Any], best: Mapping[str, str], markdown: bool) -> tuple[str, ...]:
    quality = []
    for name in QUALITY:
        text = fixed(row[name])
        if text == best.get(name):
            text = f"**{text}**" if markdown else f"*{text}"
        quality.append(f"{text} {interval(row.get(f'{name}_ci'))}".strip())
    tokens = row["completion_tokens"]
    return (
        row["system"],
        str(row["n"]),
        *quality,
        fixed(row["searches"], 1),
        fixed(row["reads"], 1),
        fixed(tokens, 0) if tokens else NONE,
        fixed(row["latency_s"], 2),
    )


def _columns(table: Sequence[Sequence[str]]) -> list[str]:
    widths = _widths(table)
    return ["  ".join(_padded(row, widths)).rstrip() for row in table]


def _pipes(table: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in table]
    widths = _widths(escaped)
    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    rows = [_padded(row, widths) for row in escaped]
    return ["| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])]


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(cell) for cell in column) for column in zip(*table, strict=True)]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The name to the left, numbers to the right."""
    first, *rest = row
    numbers = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
    return [first.ljust(widths[0]), *numbers]
