"""Documents -> overlapping passages, as spans of the text."""

from spaniel.errors import ConfigError
from spaniel.index.analysis import WORD
from spaniel.types import Document, Passage


def passages_of(document: Document, *, words: int, stride: int) -> list[Passage]:
    """Spans of ``words`` words, one starting every ``stride`` words, in text order.

    Together they cover the text; the last one may be shorter. A text without words has none.

        words 4, stride 2      a b c d e f g
                               [a b c d]
                                   [c d e f]
                                       [e f g]

    Raises:
        ConfigError: the stride is longer than a passage, so that words would be left out.
    """
    if stride > words:
        raise ConfigError(
            f"index.passage_stride_words must be <= index.passage_words, got {stride} > {words}"
        )
    spans = [match.span() for match in WORD.finditer(document.text)]
    passages = []
    for first in range(0, len(spans), stride):
        last = min(first + words, len(spans)) - 1
        start, end = spans[first][0], spans[last][1]
        passages.append(Passage(docid=document.docid, start=start, end=end))
        if last == len(spans) - 1:
            break
    return passages
