"""Questions as expressions over the fact table, and their evaluation by set algebra.

Every inner expression must name exactly one entity; only the two sides of ``Both`` may be
larger sets, as long as they meet in one.
"""

from dataclasses import dataclass
from typing import Any

from spaniel.errors import DataError
from spaniel.world.entities import Entities
from spaniel.world.facts import Fact, Facts
from spaniel.world.schema import Relation


@dataclass(frozen=True, slots=True)
class Anchor:
    """An entity that the question names."""

    entity: int


@dataclass(frozen=True, slots=True)
class Follow:
    """What stands in a relation to the argument."""

    relation: Relation
    arg: "Query"
    inverse: bool = False
    """From object to subject."""


@dataclass(frozen=True, slots=True)
class Both:
    """What satisfies two conditions."""

    left: Follow
    right: Follow


@dataclass(frozen=True, slots=True)
class Extreme:
    """The one of two that has more, or less, of an attribute."""

    relation: Relation
    more: bool
    left: "Query"
    right: "Query"


Query = Anchor | Follow | Both | Extreme
Found = dict[int, tuple[Fact, ...]]
"""Each result with the facts that lead to it, in order."""


def evaluate(facts: Facts, query: Query) -> Found:
    """All results of a query.

    Raises:
        DataError: an inner expression does not name exactly one entity, a comparison is a
            draw, or one fact table row would be needed that does not exist.
    """
    if isinstance(query, Anchor):
        return {query.entity: ()}
    if isinstance(query, Follow):
        start, trail = only(facts, query.arg)
        step = facts.subjects if query.inverse else facts.objects
        return {_other(fact, start, query): (*trail, fact) for fact in step(start, query.relation)}
    if isinstance(query, Both):
        left, right = evaluate(facts, query.left), evaluate(facts, query.right)
        return {e: left[e] + right[e] for e in left if e in right}
    return _extreme(facts, query)


def only(facts: Facts, query: Query) -> tuple[int, tuple[Fact, ...]]:
    """The single result of a query and its facts. Raises ``DataError`` unless there is one."""
    found = evaluate(facts, query)
    if len(found) != 1:
        raise DataError(f"a query must have exactly one result, got {len(found)}: {query}")
    return next(iter(found.items()))


def _other(fact: Fact, start: int, query: Follow) -> int:
    if query.relation.pairing:
        return fact.object if fact.subject == start else fact.subject
    return fact.subject if query.inverse else fact.object


def _extreme(facts: Facts, query: Extreme) -> Found:
    sides = []
    for side in (query.left, query.right):
        entity, trail = only(facts, side)
        value, facts_of_value = only(facts, Follow(query.relation, Anchor(entity)))
        sides.append((value, entity, trail + facts_of_value))
    if sides[0][0] == sides[1][0]:
        raise DataError(f"a comparison must not be a draw: {query}")
    winner = (max if query.more else min)(sides)[1]
    return {winner: sides[0][2] + sides[1][2]}


def to_json(entities: Entities, query: Query) -> list[Any]:
    """A query as nested lists: operator, relation, direction, arguments."""
    if isinstance(query, Anchor):
        return ["anchor", entities.docids[query.entity]]
    if isinstance(query, Follow):
        direction = "inverse" if query.inverse else "forward"
        return ["follow", query.relation.name, direction, to_json(entities, query.arg)]
    sides = [to_json(entities, query.left), to_json(entities, query.right)]
    if isinstance(query, Both):
        return ["both", *sides]
    return ["extreme", query.relation.name, "more" if query.more else "less", *sides]


def from_json(entities: Entities, entity_of: dict[str, int], data: list[Any]) -> Query:
    """The inverse of ``to_json``. Raises ``DataError`` when it is not such a list."""
    schema = entities.schema

    def parse(node: list[Any]) -> Query:
        match node:
            case ["anchor", docid]:
                return Anchor(entity_of[docid])
            case ["follow", name, "forward" | "inverse" as way, arg]:
                return Follow(schema.relation(name), parse(arg), way == "inverse")
            case ["both", left, right]:
                one, other = parse(left), parse(right)
                if isinstance(one, Follow) and isinstance(other, Follow):
                    return Both(one, other)
            case ["extreme", name, "more" | "less" as way, left, right]:
                return Extreme(schema.relation(name), way == "more", parse(left), parse(right))
        raise DataError(f"not a query of this world: {node!r}")

    try:
        return parse(data)
    except KeyError as error:
        raise DataError(f"a query names what this world does not have: {error}") from None
