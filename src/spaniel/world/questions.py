"""Draws questions: chains, intersections and comparisons over the fact table.

Each is a random walk that is then evaluated, worded and checked; a failed draw costs nothing
but time.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from spaniel.errors import ConfigError
from spaniel.types import Question
from spaniel.world.entities import Entities
from spaniel.world.facts import Fact, Facts
from spaniel.world.queries import Anchor, Follow, Query, only, to_json
from spaniel.world.walks import QueryBuilder
from spaniel.world.wording import Part, Wording

KIND_WEIGHTS = {"chain": 0.6, "intersection": 0.2, "comparison": 0.2}
PATIENCE = 400
"""Failed draws in a row after which a hop count is given up."""


def make_questions(
    entities: Entities,
    facts: Facts,
    world_seed: int,
    num: int,
    *,
    seed: int,
    hops: tuple[int, int],
    kinds: Sequence[str],
) -> list[Question]:
    """See ``World.questions``."""
    low, high = hops
    if not 1 <= low <= high <= 5:
        raise ConfigError(f"questions need 1 <= min_hops <= max_hops <= 5, got {low} and {high}")
    rng = Random(f"world/{world_seed}/{len(entities)}/questions/{seed}")
    drawer = _Drawer(entities, facts, world_seed, rng, kinds)
    open_hops = list(range(low, high + 1))
    questions: list[Question] = []
    while len(questions) < num and open_hops:
        for count in tuple(open_hops):
            if len(questions) == num:
                break
            question = drawer.draw(count)
            if question is None:
                open_hops.remove(count)
            else:
                questions.append(question)
    if len(questions) < num:
        raise ConfigError(
            f"a world of {len(entities):,} pages yielded {len(questions):,} different questions of "
            f"{low} to {high} hops, not {num:,}: ask for fewer, or for more pages"
        )
    rng.shuffle(questions)
    return [replace(question, qid=f"q{seed}-{i}") for i, question in enumerate(questions)]


class _Drawer:
    """Draws one question after another, never two over the same facts."""

    def __init__(
        self,
        entities: Entities,
        facts: Facts,
        world_seed: int,
        rng: Random,
        kinds: Sequence[str],
    ) -> None:
        self.entities, self.facts, self.rng, self.kinds = entities, facts, rng, kinds
        self.builder = QueryBuilder(entities, facts, rng)
        self.wording = Wording(entities, facts, world_seed, rng)
        self.seen: set[frozenset[int]] = set()

    def draw(self, hops: int) -> Question | None:
        """A new question of so many hops; None when patience runs out."""
        weights = {kind: weight for kind, weight in KIND_WEIGHTS.items() if kind in self.kinds}
        if hops == 1:
            weights.pop("comparison", None)
        if not weights:
            return None
        kind = self.rng.choices(list(weights), list(weights.values()))[0]
        for attempt in range(PATIENCE):
            if attempt == PATIENCE // 2 and "chain" in weights:
                kind = "chain"
            query = getattr(self.builder, kind)(hops)
            question = query and self._question(query, kind, hops)
            if question:
                return question
        return None

    def _question(self, query: Query, kind: str, hops: int) -> Question | None:
        result, trail = only(self.facts, query)
        key = frozenset(fact.number for fact in trail)
        targets = tuple(dict.fromkeys(self.entities.docids[fact.page] for fact in trail))
        if key in self.seen or len(targets) != hops:
            return None
        text = self.wording.question(query)
        answers = answers_of(self.entities, query, result)
        if leaks(self.entities, query, trail, answers, text):
            return None
        self.seen.add(key)
        decomposition = [describe(self.entities, fact) for fact in trail]
        return Question(
            qid="",
            text=text,
            targets=targets,
            answers=answers,
            hops=hops,
            kind=kind,
            metadata={
                "decomposition": decomposition,
                "query": to_json(self.entities, query),
                "parts": [self._part(part) for part in self.wording.parts],
            },
        )

    def _part(self, part: Part) -> dict[str, Any]:
        """What a question says of an entity that it does not name."""
        return {
            "phrase": part.phrase,
            "name": self.entities.names[part.entity],
            "docids": [self.entities.docids[page] for page in part.pages],
            "preface": part.preface,
        }


def answers_of(entities: Entities, query: Query, result: int) -> tuple[str, ...]:
    """Every accepted way to write the result of a query, the usual one first."""
    if not (isinstance(query, Follow) and query.relation.is_attribute):
        return tuple(dict.fromkeys((entities.names[result], entities.titles[result])))
    text = entities.schema.value_text(query.relation, result)
    if query.relation.value != "number":
        return (text,)
    return tuple(dict.fromkeys((text, f"{result:,}", str(result))))


def describe(entities: Entities, fact: Fact) -> dict[str, str]:
    """One step of a decomposition."""
    relation = fact.relation
    is_value = relation.is_attribute
    return {
        "subject": entities.titles[fact.subject],
        "relation": relation.name,
        "object": entities.schema.value_text(relation, fact.object)
        if is_value
        else entities.titles[fact.object],
        "docid": entities.docids[fact.page],
    }


def anchors_of(query: Query) -> set[int]:
    """The entities that the question names."""
    if isinstance(query, Anchor):
        return {query.entity}
    if isinstance(query, Follow):
        return anchors_of(query.arg)
    return anchors_of(query.left) | anchors_of(query.right)


def leaks(
    entities: Entities, query: Query, trail: tuple[Fact, ...], answers: tuple[str, ...], text: str
) -> bool:
    """The question gives away an entity on its path, or the answer."""
    on_path = {fact.subject for fact in trail}
    on_path |= {fact.object for fact in trail if not fact.relation.is_attribute}
    hidden = [entities.names[entity] for entity in on_path - anchors_of(query)]
    return any(contains(text, name) for name in (*hidden, *answers))


def contains(text: str, name: str) -> bool:
    """The name stands in the text as whole words, in any case."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None
