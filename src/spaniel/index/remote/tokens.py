"""Our own terms as tokens of another engine, which then only splits at blanks."""

import hashlib
import re
from collections.abc import Callable, Sequence

_PLAIN = re.compile(r"[a-z0-9]{1,36}")


def in_place(
    positioned: Sequence[tuple[int, str]],
    gap: str,
    *,
    first: int = 0,
    token: Callable[[str], str] = str,
) -> list[str]:
    """Tokens at their distances; ``gap`` stands for each word that is not indexed.

    Args:
        positioned: (position, term), ascending.
        first: position of the first token.
        token: how a term is written.

    Example:
        >>> in_place([(0, "bank"), (2, "america")], "*")
        ['bank', '*', 'america']
    """
    tokens: list[str] = []
    for position, term in positioned:
        tokens += [gap] * (position - first - len(tokens))
        tokens.append(token(term))
    return tokens


def plain_token(term: str) -> str:
    """A term as ASCII letters and digits; one to one, for practical purposes.

    For an engine whose tokenizer cannot be told to leave other characters alone.
    """
    if _PLAIN.fullmatch(term) and not term.startswith("zzz"):
        return term
    return "zzzx" + hashlib.sha256(term.encode()).hexdigest()[:28]
