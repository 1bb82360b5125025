"""Reading drills: a page, then questions about it, each answered by a query for the answer.

    Results: <page>  Question: ...  search("<what answers it>")  Question: ...

A demonstration holds one or two decisions of this kind among a thousand tokens, a drill four
among three hundred.
What a small policy learns from them, to find the name that a relation points to, is what it
needs between two hops.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from spaniel.env.aliases import Aliases
from spaniel.env.dialects import Dialect
from spaniel.env.tools import FINDER_TOOLS
from spaniel.renderer import Renderer
from spaniel.rollout import seed_of
from spaniel.sft.ledgers import Demonstration
from spaniel.types import Document, Message, Question, ToolCall
from spaniel.world import World


def reading_drills(
    world: World, num_questions: int, renderer: Renderer, dialect: Dialect, *, seed: int
) -> Iterator[Demonstration]:
    """One drill for each page of a world that one-hop questions ask for.

    Args:
        num_questions: how many the world is asked for; those whose answer the page does not
            spell out are left out.
    """
    asked: dict[str, list[tuple[Question, str]]] = {}
    for question in world.questions(num_questions, seed=seed, min_hops=1, max_hops=1):
        page = world.document(question.targets[0])
        answer = _spelled_out(question, page)
        if answer:
            asked.setdefault(page.docid, []).append((question, answer))
    for docid, pairs in asked.items():
        yield _drill(world.document(docid), pairs, renderer, dialect)


def _drill(
    page: Document, pairs: Sequence[tuple[Question, str]], renderer: Renderer, dialect: Dialect
) -> Demonstration:
    alias = Aliases(seed_of("reading", page.docid)).show(page.docid)
    ids: list[int] = []
    own: list[bool] = []
    for number, (question, answer) in enumerate(pairs):
        text = f"Question: {question.text}"
        if number == 0:
            shown = f"Results:\n{page.title} [{alias}]\n{page.text}\n{text}"
            context = renderer.initial([Message(role="user", content=shown)])
        else:
            context = renderer.observation(text, ended=True)
        call = ToolCall(name="search", arguments={"query": answer})
        written = renderer.encode_completion(dialect.write(call, FINDER_TOOLS))
        ids += [*context, *written]
        own += [False] * len(context) + [True] * len(written)
    return Demonstration(np.array(ids, dtype=np.uint16), np.array(own), 0)


def _spelled_out(question: Question, page: Document) -> str | None:
    for answer in question.answers:
        if answer in page.text or answer == page.title:
            return answer
    return None
