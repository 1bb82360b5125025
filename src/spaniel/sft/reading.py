"""Lessons that are denser than demonstrations, for a policy that starts from random weights.

    drill        Results: <page>  Question: ...  search("<what answers it>")  Question: ...
    chain        Results: <pages>  Question: ...  search("<name>")  <title>  search("<name>") ...
                                   report(["<ids>"])  Question: ...
    tight walk   Question: ...  search("<name>")  Results: <page>  search("<name on it>") ...

A walk through an episode holds one decision that takes reading among some four hundred tokens:
the rest are hits and their ids. A tight walk, where every search shows the right page in full,
holds one in a hundred and fifty. A drill holds one in fifty to eighty, because a page is read once
for many questions; a chain does the same for questions of several hops over a few pages.
What a small policy learns from them, to find the name that a relation points to and to see which
relation comes next, is what it needs between two hops.
"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from spaniel.env.aliases import Aliases
from spaniel.env.episode import Environment
from spaniel.renderer import Renderer
from spaniel.rollout import seed_of
from spaniel.sft.ledgers import CHAIN, DRILL, TIGHT, Demonstration
from spaniel.sft.thoughts import reduced, with_thought
from spaniel.types import Document, Message, Question, ToolCall
from spaniel.world import World

CHAIN_PAGES, CHAIN_QUESTIONS = 6, 10
"""Of one chain drill, at the most."""
_PARENTHESIS = re.compile(r" \([^)]*\)$")


def reading_drills(
    world: World, num_questions: int, renderer: Renderer, environment: Environment, *, seed: int
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
        yield _drill(world.document(docid), pairs, renderer, environment)


def _drill(
    page: Document,
    pairs: Sequence[tuple[Question, str]],
    renderer: Renderer,
    environment: Environment,
) -> Demonstration:
    alias = Aliases(seed_of("reading", page.docid)).show(page.docid)
    dialog = _Dialog(renderer, environment)
    for number, (question, answer) in enumerate(pairs):
        text = f"Question: {question.text}"
        if number == 0:
            shown = f"{page.title} [{alias}]\n{page.text}\n{text}"
            dialog.open(environment.dialect.observation(shown))
        else:
            dialog.show(text)
        dialog.write("search", {"query": answer})
    return dialog.demonstration(DRILL)


def chain_drills(
    world: World, num_questions: int, renderer: Renderer, environment: Environment, *, seed: int
) -> Iterator[Demonstration]:
    """Questions of two to four hops in clusters that live on the same few pages.

    Args:
        num_questions: how many the world is asked for; those with a step to which no visible name
            leads are left out.
    """
    questions = world.questions(num_questions, seed=seed, min_hops=2, max_hops=4)
    walks = [(q, steps) for q in questions if (steps := _steps(q, world)) is not None]
    for number, cluster in enumerate(_clusters([[d.docid for _, d in s] for _, s in walks])):
        chosen = [walks[i] for i in cluster]
        yield _chain_drill(chosen, renderer, environment, seed_of("chain", seed, number))


def _clusters(pages_of: Sequence[Sequence[str]]) -> Iterator[list[int]]:
    """Numbers of questions that share pages: as many as fit, those with the fewest new pages
    first."""
    having: dict[str, list[int]] = {}
    for number, pages in enumerate(pages_of):
        for page in pages:
            having.setdefault(page, []).append(number)
    left = dict.fromkeys(range(len(pages_of)))
    while left:
        first = next(iter(left))
        cluster, held = [first], set(pages_of[first])
        del left[first]
        while len(cluster) < CHAIN_QUESTIONS:
            near = dict.fromkeys(n for page in sorted(held) for n in having[page] if n in left)
            sizes = {n: len(held.union(pages_of[n])) for n in near}
            best = min(sizes, key=lambda n: sizes[n], default=None)
            if best is None or sizes[best] > CHAIN_PAGES:
                break
            cluster.append(best)
            held.update(pages_of[best])
            del left[best]
        yield cluster


def _chain_drill(
    walks: Sequence[tuple[Question, list[tuple[str, Document]]]],
    renderer: Renderer,
    environment: Environment,
    seed: int,
) -> Demonstration:
    aliases = Aliases(seed)
    pages = list({page.docid: page for _, steps in walks for _, page in steps}.values())
    random.Random(seed).shuffle(pages)
    heads = {page.docid: f"{page.title} [{aliases.show(page.docid)}]" for page in pages}
    shown = "\n\n".join(f"{heads[page.docid]}\n{page.text}" for page in pages)
    dialog = _Dialog(renderer, environment)
    for number, (question, steps) in enumerate(walks):
        text = f"Question: {question.text}"
        if number == 0:
            dialog.open(environment.dialect.observation(f"{shown}\n{text}"))
        else:
            dialog.show(text)
        for query, page in steps:
            dialog.write("search", {"query": query})
            dialog.show_results(heads[page.docid] + environment.reminder(question))
        dialog.write("report", {"doc_ids": [aliases.show(page.docid) for _, page in steps]})
    return dialog.demonstration(CHAIN)


def tight_walks(
    questions: Sequence[Question],
    world: World,
    renderer: Renderer,
    environment: Environment,
    *,
    thoughts: bool = False,
) -> Iterator[Demonstration]:
    """Questions walked along their decomposition, as if every search showed the right page.

    A query is a name that stands in the question or on a page that was shown; a question with
    a step to which no such name leads is left out.
    """
    for question in questions:
        walk = _tight_walk(question, world, renderer, environment, thoughts)
        if walk is not None:
            yield walk


def _tight_walk(
    question: Question,
    world: World,
    renderer: Renderer,
    environment: Environment,
    thoughts: bool,
) -> Demonstration | None:
    steps = _steps(question, world)
    if steps is None:
        return None
    seed = seed_of("tight", question.qid, question.text)
    aliases = Aliases(seed)
    dialog = _Dialog(renderer, environment)
    dialog.open(*environment.episode(question, seed=seed).reset())
    visible = known = question.text
    shown: list[str] = []
    for query, page in steps:
        known, before = reduced(question, shown, visible), known
        thought = known if thoughts and known != before else ""
        dialog.write("search", {"query": query}, thought)
        head = f"{page.title} [{aliases.show(page.docid)}]"
        dialog.show_results(f"{head}\n{page.text}" + environment.reminder(question))
        visible += f"\n{page.title}\n{page.text}"
        shown.append(page.docid)
    dialog.write("report", {"doc_ids": [aliases.show(docid) for docid in shown]})
    return dialog.demonstration(TIGHT)


def _steps(question: Question, world: World) -> list[tuple[str, Document]] | None:
    """(query, page it leads to) along the decomposition, each page once; None where a step has no
    name that stands in the question or on a page before."""
    visible = question.text
    steps: list[tuple[str, Document]] = []
    for fact in question.metadata["decomposition"]:
        if any(page.docid == fact["docid"] for _, page in steps):
            continue
        names = [_PARENTHESIS.sub("", fact[end]) for end in ("subject", "object")]
        query = next((name for name in names if name in visible), None)
        if query is None:
            return None
        page = world.document(fact["docid"])
        steps.append((query, page))
        visible += f"\n{page.title}\n{page.text}"
    return steps


class _Dialog:
    """Token ids of a lesson, as an episode would lay them."""

    def __init__(self, renderer: Renderer, environment: Environment) -> None:
        self._renderer, self._environment = renderer, environment
        self._ids: list[int] = []
        self._own: list[bool] = []

    def open(self, *messages: str | Message) -> None:
        """The first messages; plain text is a user's."""
        made = [Message(role="user", content=m) if isinstance(m, str) else m for m in messages]
        self._extend(self._renderer.initial(made), own=False)

    def show(self, text: str) -> None:
        """Something behind a finished turn."""
        self._extend(self._renderer.observation(text, ended=True), own=False)

    def show_results(self, text: str) -> None:
        """What a tool gave."""
        self.show(self._environment.dialect.observation(text))

    def write(self, tool: str, arguments: dict[str, Any], thought: str = "") -> None:
        """A turn of the teacher."""
        call = ToolCall(name=tool, arguments=arguments)
        text = self._environment.dialect.write(call, self._environment.tools)
        self._extend(self._renderer.encode_completion(with_thought(thought, text)), own=True)

    def _extend(self, ids: Sequence[int], *, own: bool) -> None:
        self._ids += ids
        self._own += [own] * len(ids)

    def demonstration(self, kind: int) -> Demonstration:
        """What was laid."""
        return Demonstration(np.array(self._ids, dtype=np.uint16), np.array(self._own), kind)


def _spelled_out(question: Question, page: Document) -> str | None:
    for answer in question.answers:
        if answer in page.text or answer == page.title:
            return answer
    return None
