"""Lessons that are denser than demonstrations, for a policy that starts from random weights.

    drill        Results: <page>  Question: ...  search("<what answers it>")  Question: ...
    tight walk   Question: ...  search("<name>")  Results: <page>  search("<name on it>") ...

A walk through an episode holds one decision that takes reading among some four hundred tokens:
the rest are hits and their ids. A drill holds one in eighty; a tight walk, where every search
shows the right page in full, one in a hundred and fifty, in the order of an episode.
What a small policy learns from them, to find the name that a relation points to, is what it
needs between two hops.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from spaniel.env.aliases import Aliases
from spaniel.env.episode import Environment
from spaniel.renderer import Renderer
from spaniel.rollout import seed_of
from spaniel.sft.ledgers import DRILL, TIGHT, Demonstration
from spaniel.sft.thoughts import reduced, with_thought
from spaniel.types import Document, Message, Question, ToolCall
from spaniel.world import World

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
    dialect = environment.dialect
    alias = Aliases(seed_of("reading", page.docid)).show(page.docid)
    ids: list[int] = []
    own: list[bool] = []
    for number, (question, answer) in enumerate(pairs):
        text = f"Question: {question.text}"
        if number == 0:
            shown = dialect.observation(f"{page.title} [{alias}]\n{page.text}\n{text}")
            context = renderer.initial([Message(role="user", content=shown)])
        else:
            context = renderer.observation(text, ended=True)
        call = ToolCall(name="search", arguments={"query": answer})
        written = renderer.encode_completion(dialect.write(call, environment.tools))
        ids += [*context, *written]
        own += [False] * len(context) + [True] * len(written)
    return Demonstration(np.array(ids, dtype=np.uint16), np.array(own), DRILL)


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
    seed = seed_of("tight", question.qid, question.text)
    aliases = Aliases(seed)
    ids = list(renderer.initial(environment.episode(question, seed=seed).reset()))
    own = [False] * len(ids)
    visible = known = question.text
    shown: list[str] = []
    called: list[str] = []

    def write(name: str, arguments: dict[str, Any], thought: str = "") -> None:
        call = ToolCall(name=name, arguments=arguments)
        text = with_thought(thought, environment.dialect.write(call, environment.tools))
        written = renderer.encode_completion(text)
        ids.extend(written)
        own.extend([True] * len(written))

    for step in question.metadata["decomposition"]:
        if step["docid"] in shown:
            continue
        names = [_PARENTHESIS.sub("", step[end]) for end in ("subject", "object")]
        query = next((name for name in names if name in visible), None)
        if query is None:
            return None
        known, before = reduced(question, shown, visible), known
        write("search", {"query": query}, known if thoughts and known != before else "")
        page = world.document(step["docid"])
        called.append(aliases.show(page.docid))
        shown_page = f"{page.title} [{called[-1]}]\n{page.text}"
        text = environment.dialect.observation(shown_page + environment.reminder(question))
        context = renderer.observation(text, ended=True)
        ids.extend(context)
        own.extend([False] * len(context))
        visible += f"\n{page.title}\n{page.text}"
        shown.append(page.docid)
    write("report", {"doc_ids": called})
    return Demonstration(np.array(ids, dtype=np.uint16), np.array(own), TIGHT)


def _spelled_out(question: Question, page: Document) -> str | None:
    for answer in question.answers:
        if answer in page.text or answer == page.title:
            return answer
    return None
