"""One-hop questions from a corpus's own titles: a free curriculum for a small policy."""

import random
from collections import Counter
from collections.abc import Collection, Iterable

from spaniel.types import Document, Question

WORDINGS = (
    "What is {}?",
    "Find the page about {}.",
    "Tell me about {}.",
    "What is known about {}?",
    "Which document is on {}?",
)


def title_questions(
    documents: Iterable[Document], num: int, *, seed: int, held_out: Collection[str]
) -> list[Question]:
    """At most ``num`` questions that name one title each; the target is its document.

    Titles that several documents share are left out, and so are ``held_out`` docids, which
    are the targets of test questions.
    """
    candidates = [d for d in documents if d.title.strip() and d.docid not in held_out]
    uses = Counter(d.title.casefold() for d in candidates)
    candidates = [d for d in candidates if uses[d.title.casefold()] == 1]
    rng = random.Random(seed)
    chosen = rng.sample(candidates, min(num, len(candidates)))
    return [
        Question(
            qid=f"title-{number}",
            text=rng.choice(WORDINGS).format(document.title),
            targets=(document.docid,),
            hops=1,
            kind="title",
        )
        for number, document in enumerate(chosen)
    ]
