"""Random walks over the facts: the queries that questions are worded from.

A builder walks until exactly the wanted number of pages is involved, or gives up with None.
"""

import itertools
from collections.abc import Iterator
from random import Random

from spaniel.world.entities import Entities
from spaniel.world.facts import Fact, Facts
from spaniel.world.queries import Anchor, Both, Extreme, Follow, Query
from spaniel.world.schema import NUMERIC, Relation

EXTRA_FACTS = 2
"""A walk may use this many facts more than pages."""
INVERSE_WEIGHT = 0.5
"""Against 1 for a step from subject to object."""


class QueryBuilder:
    """Random walks over the facts that involve exactly so many pages."""

    def __init__(self, entities: Entities, facts: Facts, rng: Random) -> None:
        self.entities, self.facts, self.rng = entities, facts, rng
        self._starts = self._endless_starts()
        numeric = [r for r in entities.schema.relations if r.value in NUMERIC]
        self._rows = {r.number: facts.of_relation(r).tolist() for r in numeric}

    def _endless_starts(self) -> Iterator[int]:
        """Every entity once before any comes again."""
        order = list(range(len(self.entities)))
        while True:
            self.rng.shuffle(order)
            yield from order

    def chain(self, hops: int) -> Query | None:
        """From a named entity along relations to a fact of the last one."""
        start = next(self._starts)
        return self._walk(Anchor(start), start, set(), {start}, hops)

    def intersection(self, hops: int) -> Query | None:
        """Two conditions that meet in one entity, each alone in several; perhaps a walk on."""
        meeting = next(self._starts)
        conditions = self._conditions(meeting)
        self.rng.shuffle(conditions)
        for (left, a), (right, b) in itertools.islice(itertools.combinations(conditions, 2), 10):
            if left.other == right.other or not (left.inverse or right.inverse):
                continue
            if a & b == {meeting}:
                break
        else:
            return None
        pages = {left.fact.page, right.fact.page}
        seen = {meeting, left.other, right.other}
        arms = [_Arm(left.other), _Arm(right.other)]
        self._grow(arms, pages, seen, self.rng.randint(len(pages), max(hops, len(pages))))
        query = Both(
            Follow(left.relation, arms[0].query(), left.inverse),
            Follow(right.relation, arms[1].query(), right.inverse),
        )
        if len(pages) == hops and self.rng.random() < 0.5:
            return query
        return self._walk(query, meeting, pages, seen, hops)

    def comparison(self, hops: int) -> Query | None:
        """The older, longer, larger ... of two; then a fact of it, unless neither is named."""
        first = next(self._starts)
        known = [f for f in self.facts.of_subject(first) if f.relation.value in NUMERIC]
        if not known:
            return None
        fact = self.rng.choice(known)
        rival = self.facts[self.rng.choice(self._rows[fact.relation.number])]
        if rival.object == fact.object:
            return None
        sides = [fact, rival]
        self.rng.shuffle(sides)
        pages = {fact.page, rival.page}
        seen = {fact.subject, rival.subject}
        arms = [_Arm(side.subject) for side in sides]
        self._grow(arms, pages, seen, self.rng.randint(2, hops))
        more = self.rng.random() < 0.5
        query = Extreme(fact.relation, more, arms[0].query(), arms[1].query())
        if len(pages) == hops and all(arm.steps for arm in arms) and self.rng.random() < 0.6:
            return query
        winner, loser = sorted(sides, key=lambda f: f.object, reverse=more)
        return self._walk(query, winner.subject, pages, seen, hops, unlike=loser.subject)

    def _walk(
        self,
        query: Query,
        entity: int,
        pages: set[int],
        seen: set[int],
        hops: int,
        *,
        unlike: int | None = None,
    ) -> Query | None:
        """Go on from an entity until ``hops`` pages are involved, and ask for a fact there.

        ``unlike``: this other entity must answer the first step differently.
        """
        pages, seen = set(pages), set(seen)
        for _ in range(hops + EXTRA_FACTS - len(pages)):
            steps = [s for s in self._steps(entity) if len(pages | {s.fact.page}) <= hops]
            steps = [s for s in steps if s.is_value or s.other not in seen]
            if unlike is not None:
                steps = [s for s in steps if self._differs(s, unlike)]
                unlike = None
            ends = [s for s in steps if len(pages | {s.fact.page}) == hops]
            moves = [s for s in steps if not s.is_value]
            if ends and (not moves or self.rng.random() < 0.65):
                step = self._pick(ends)
                return Follow(step.relation, query, step.inverse)
            if not moves:
                return None
            step = self._pick(moves)
            query, entity = Follow(step.relation, query, step.inverse), step.other
            pages.add(step.fact.page)
            seen.add(entity)
        return None

    def _steps(self, entity: int) -> list["_Step"]:
        """Steps from an entity that lead to exactly one result."""
        steps = [
            _Step(fact, fact.object, False)
            for fact in self.facts.of_subject(entity)
            if fact.relation.is_functional
        ]
        for fact in self.facts.sole_of_object(entity):
            steps.append(_Step(fact, fact.subject, not fact.relation.pairing))
        return steps

    def _pick(self, steps: list["_Step"]) -> "_Step":
        weights = [INVERSE_WEIGHT if step.inverse else 1.0 for step in steps]
        return self.rng.choices(steps, weights)[0]

    def _differs(self, step: "_Step", entity: int) -> bool:
        if step.inverse or step.relation.pairing:
            return False
        others = self.facts.objects(entity, step.relation)
        return len(others) == 1 and others[0].object != step.fact.object

    def _conditions(self, entity: int) -> list[tuple["_Step", set[int]]]:
        """Conditions that the entity meets together with others, and all that meet them."""
        found = []
        for fact in self.facts.of_subject(entity):
            relation = fact.relation
            if not relation.is_attribute and not relation.pairing:
                group = {f.subject for f in self.facts.subjects(fact.object, relation)}
                found.append((_Step(fact, fact.object, True), group))
        for fact in self.facts.some_of_object(entity, self.rng, 8):
            if not fact.relation.is_functional:
                group = {f.object for f in self.facts.objects(fact.subject, fact.relation)}
                found.append((_Step(fact, fact.subject, False), group))
        return [(step, group) for step, group in found if len(group) > 1]

    def _grow(self, arms: list["_Arm"], pages: set[int], seen: set[int], size: int) -> None:
        """Lengthen the arms backwards until ``size`` pages are involved, if they go so far."""
        for _ in range(size - len(pages) + 1):
            arm = self.rng.choice(arms)
            steps = [s for s in self._steps_to(arm.start) if s.other not in seen]
            steps = [s for s in steps if len(pages | {s.fact.page}) <= size]
            if steps:
                step = self._pick(steps)
                arm.start = step.other
                arm.steps.insert(0, (step.relation, step.inverse))
                pages.add(step.fact.page)
                seen.add(step.other)

    def _steps_to(self, entity: int) -> list["_Step"]:
        """Steps whose only result is this entity; ``other`` is where they start."""
        steps = []
        for fact in self.facts.some_of_object(entity, self.rng, 8):
            if fact.relation.is_functional:
                steps.append(_Step(fact, fact.subject, False))
        for fact in self.facts.of_subject(entity):
            relation = fact.relation
            if relation.is_attribute:
                continue
            if len(self.facts.subjects(fact.object, relation)) == 1:
                steps.append(_Step(fact, fact.object, not relation.pairing))
        return steps


class _Step:
    """One step along a fact, and the entity or value at its other end."""

    __slots__ = ("fact", "inverse", "other")

    def __init__(self, fact: Fact, other: int, inverse: bool) -> None:
        self.fact, self.other, self.inverse = fact, other, inverse

    @property
    def relation(self) -> Relation:
        return self.fact.relation

    @property
    def is_value(self) -> bool:
        return self.relation.is_attribute


class _Arm:
    """A chain from a named entity that can grow at its beginning."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.steps: list[tuple[Relation, bool]] = []

    def query(self) -> Query:
        query: Query = Anchor(self.start)
        for relation, inverse in self.steps:
            query = Follow(relation, query, inverse)
        return query
