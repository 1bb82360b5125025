"""How numbers are written, the same in terminal, README and report."""

from collections.abc import Sequence

NONE = "–"  # noqa: RUF001  # an en dash is what a table shows for nothing


def fixed(value: float | None, digits: int = 3) -> str:
    """``0.512``; a dash for None."""
    return NONE if value is None else f"{value:,.{digits}f}"


def signed(value: float, digits: int = 3) -> str:
    """``+0.123`` or ``-0.123``; what rounds to zero is ``+0.000``."""
    rounded = round(value, digits) + 0.0  # turns -0.0 into 0.0
    return f"{rounded:+.{digits}f}"


def interval(bounds: Sequence[float] | None, digits: int = 3) -> str:
    """``[0.470, 0.553]``; empty for None."""
    return "" if bounds is None else f"[{bounds[0]:.{digits}f}, {bounds[1]:.{digits}f}]"


def p_value(p: float) -> str:
    """``p = 0.012``, or ``p < 0.001``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def usd(value: float) -> str:
    """Dollars and cents; below ten cents at least two significant digits."""
    if value == 0 or value >= 1:
        return f"${value:,.2f}"
    digits = 2
    while digits < 12 and value * 10**digits < 10:
        digits += 1
    return f"${value:.{digits}f}"


def duration(seconds: float) -> str:
    """``0.42 s``, ``12 s``, ``7 min``, ``2.5 h``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
