"""Charts as inline SVG without scripts: lines over steps, and bars or intervals by system.

Colours are CSS classes (``c0`` .. ``c5``, ``ours``, ``theirs``), so that light and dark are the
style sheet's business. Values stand next to the marks; colour alone carries nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spaniel.eval.formats import fixed
from spaniel.eval.markup import Markup, el

NUM_COLORS = 6
MAX_POINTS = 240
"""Points of a line; longer ones are averaged down to so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: (x, y) pairs in order of x, finite."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a bar panel."""

    name: str
    value: float
    low: float | None = None
    """Ends of the interval, where there is one."""
    high: float | None = None
    ours: bool = False
    """Drawn in the accent colour."""


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    """Pixel of ``low``."""
    end: float
    """Pixel of ``high``."""

    def at(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (value - self.low) / span * (self.end - self.start)


def line_panel(title: str, series: Sequence[Series], *, x_label: str = "step") -> Markup:
    """A line chart; with many points, a pale line of the values under their moving mean.

    Args:
        series: at least one has points.

    Returns:
        A ``figure``; screen readers get first and last value of each line.
    """
    width, height = 360, 216
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points]
    ticks = nice_ticks(min(ys), max(ys))
    x_low, x_high = min(xs), max(xs)
    x_axis = _Axis(x_low, x_high if x_high > x_low else x_low + 1, 46, width - 12)
    y_axis = _Axis(ticks[0], ticks[-1], height - 32, 10)
    marks: list[str] = [el("title", title), el("desc", _spoken(series))]
    for tick in ticks:
        y = y_axis.at(tick)
        marks.append(el("line", x1=46.0, x2=width - 12.0, y1=y, y2=y, cls="grid"))
        marks.append(el("text", _tick(tick), x=40.0, y=y + 4, cls="tick end"))
    for tick in nice_ticks(x_low, x_axis.high):
        if x_axis.low <= tick <= x_axis.high and float(tick).is_integer():
            x = x_axis.at(tick)
            marks.append(el("text", _tick(tick), x=x, y=height - 16.0, cls="tick mid"))
    marks.append(el("text", x_label, x=width - 12.0, y=height - 2.0, cls="tick end"))
    for number, line in enumerate(series):
        if not line.points:
            continue  # its colour stays reserved, so that panels agree with the legend
        marks += _line(line, x_axis, y_axis, f"c{number % NUM_COLORS}")
    svg = el("svg", *marks, viewBox=f"0 0 {width} {height}", role="img", aria_label=title)
    return el("figure", el("figcaption", title), svg, cls="panel")


def bar_panel(title: str, bars: Sequence[Bar], *, width: int = 360) -> Markup:
    """Horizontal bars from 0 to 1 with their values, and intervals as whiskers."""
    row, top = 24, 6
    height = top + row * len(bars) + 4
    label = max(7.0 * max(len(bar.name) for bar in bars) + 10, 60)
    label = min(label, width * 0.42)
    axis = _Axis(0, 1, label, width - 46.0)
    marks: list[str] = [el("title", title), el("desc", _spoken_bars(bars))]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = axis.at(tick)
        marks.append(el("line", x1=x, x2=x, y1=top, y2=height - 4.0, cls="grid"))
    for number, bar in enumerate(bars):
        y = top + row * number + row / 2
        kind = "ours" if bar.ours else "theirs"
        name = bar.name if len(bar.name) * 7 < label else bar.name[: int(label / 7) - 1] + "…"
        marks.append(el("text", name, x=label - 8, y=y + 4, cls="name end"))
        length = max(axis.at(bar.value) - label, 0.5)
        marks.append(el("rect", x=label, y=y - 7, width=length, height=14.0, cls=f"bar {kind}"))
        if bar.low is not None and bar.high is not None:
            marks += _whisker(axis.at(bar.low), axis.at(bar.high), y)
        right = max(axis.at(bar.value), axis.at(bar.high or 0)) + 6
        marks.append(el("text", fixed(bar.value, 2), x=right, y=y + 4, cls="value"))
    svg = el("svg", *marks, viewBox=f"0 0 {width} {height}", role="img", aria_label=title)
    return el("figure", el("figcaption", title), svg, cls="panel")


def legend(names: Sequence[str]) -> Markup:
    """Names of the lines with their colours."""
    return el(
        "ul",
        *[
            el("li", el("span", cls=f"key c{number % NUM_COLORS}", aria_hidden="true"), name)
            for number, name in enumerate(names)
        ],
        cls="legend",
    )


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About ``count`` round numbers whose first is <= low and last >= high, at least two."""
    if high <= low:
        pad = abs(low) * 0.1 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def averaged(points: Sequence[tuple[float, float]], limit: int) -> list[tuple[float, float]]:
    """At most ``limit`` points, each the mean of a run of neighbours."""
    size = -(-len(points) // limit)
    buckets = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in b) / len(b), sum(y for _, y in b) / len(b)) for b in buckets]


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean over the ``window`` values around each; fewer at the ends."""
    half = window // 2
    means = []
    for i in range(len(values)):
        near = values[max(0, i - half) : i + half + 1]
        means.append(sum(near) / len(near))
    return means


def _line(series: Series, x_axis: _Axis, y_axis: _Axis, color: str) -> list[str]:
    points = averaged(series.points, MAX_POINTS)
    marks: list[str] = []
    if len(points) >= 20:
        marks.append(_polyline(points, x_axis, y_axis, f"line raw {color}"))
        window = max(3, len(points) // 15)
        smooth = moving_mean([y for _, y in points], window)
        points = [(x, y) for (x, _), y in zip(points, smooth, strict=True)]
    marks.append(_polyline(points, x_axis, y_axis, f"line {color}"))
    x, y = points[-1]
    note = el("title", f"{series.name}: {_tick(y)} at {_tick(x)}")
    marks.append(el("g", note, el("circle", cx=x_axis.at(x), cy=y_axis.at(y), r=3, cls=color)))
    return marks


def _polyline(
    points: Sequence[tuple[float, float]], x_axis: _Axis, y_axis: _Axis, cls: str
) -> Markup:
    pixels = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in points)
    return el("polyline", points=pixels, cls=cls)


def _whisker(left: float, right: float, y: float) -> list[str]:
    ends = [el("line", x1=x, x2=x, y1=y - 4, y2=y + 4, cls="whisker") for x in (left, right)]
    return [el("line", x1=left, x2=right, y1=y, y2=y, cls="whisker"), *ends]


def _spoken(series: Sequence[Series]) -> str:
    parts = []
    for s in series:
        if not s.points:
            continue
        (x0, y0), (x1, y1) = s.points[0], s.points[-1]
        parts.append(f"{s.name}: {_tick(y0)} at {_tick(x0)}, {_tick(y1)} at {_tick(x1)}")
    return "; ".join(parts)


def _spoken_bars(bars: Sequence[Bar]) -> str:
    return "; ".join(f"{bar.name}: {fixed(bar.value)}" for bar in bars)


def _tick(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
