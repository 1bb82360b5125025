"""The fact table: every relation of the world in four parallel arrays, with indexes.

A fact is subject, relation, object and the page that states it. Entities are numbers from
0; an attribute's object is its value. 200,000 pages have about a million facts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from spaniel.world.schema import Relation, Schema

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One row of the table."""

    number: int
    """Its row."""
    subject: int
    """Entity."""
    relation: Relation
    object: int
    """Entity, or the value of an attribute."""
    page: int
    """Entity whose page states it: the only page that does."""


class Facts:
    """All facts, sorted by the page that states them.

    Args:
        schema: where the relation numbers point.
        num_entities: entities are ``range(num_entities)``.
        subject: [num_facts].
        relation: [num_facts] numbers of relations.
        object: [num_facts] entities or values.
    """

    def __init__(
        self, schema: Schema, num_entities: int, subject: Ints, relation: Ints, object: Ints
    ) -> None:
        on_object = np.array([r.stated_on == "object" for r in schema.relations])
        is_entity = np.array([not r.is_attribute for r in schema.relations])
        page = np.where(on_object[relation], object, subject)
        order = np.lexsort((object, relation, page))
        self.schema = schema
        self.subject, self.relation = subject[order], relation[order]
        self.object, self.page = object[order], page[order]
        self._page_starts = np.searchsorted(self.page, np.arange(num_entities + 1))
        self._by_subject, self._subject_starts = _index(self.subject, num_entities)
        rows = np.flatnonzero(is_entity[self.relation]).astype(np.int32)
        by_object, self._object_starts = _index(self.object[rows], num_entities)
        self._by_object = rows[by_object]

    def __len__(self) -> int:
        return len(self.subject)

    def __iter__(self) -> Iterator[Fact]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Fact:
        return Fact(
            number=number,
            subject=int(self.subject[number]),
            relation=self.schema.relations[self.relation[number]],
            object=int(self.object[number]),
            page=int(self.page[number]),
        )

    def stated_on(self, page: int) -> list[Fact]:
        """The facts that this page states."""
        return [self[i] for i in range(self._page_starts[page], self._page_starts[page + 1])]

    def of_subject(self, entity: int) -> list[Fact]:
        """The facts whose subject it is."""
        return [self[number] for number in self._rows_of_subject(entity).tolist()]

    def of_object(self, entity: int) -> list[Fact]:
        """The facts between entities whose object it is."""
        return [self[number] for number in self._rows_of_object(entity).tolist()]

    def some_of_object(self, entity: int, rng: Random, most: int) -> list[Fact]:
        """At most so many facts whose object it is: a hub has hundreds."""
        rows = self._rows_of_object(entity).tolist()
        return [self[number] for number in rng.sample(rows, min(most, len(rows)))]

    def objects(self, subject: int, relation: Relation) -> list[Fact]:
        """The facts ``relation(subject, ?)``; for a pairing, either way round."""
        found = self._with(self._rows_of_subject(subject), relation)
        if relation.pairing:
            found += self._with(self._rows_of_object(subject), relation)
        return found

    def subjects(self, object: int, relation: Relation) -> list[Fact]:
        """The facts ``relation(?, object)``; for a pairing, either way round."""
        if relation.pairing:
            return self.objects(object, relation)
        return self._with(self._rows_of_object(object), relation)

    def of_relation(self, relation: Relation) -> Ints:
        """Rows of all facts of one relation."""
        return np.flatnonzero(self.relation == relation.number).astype(np.int32)

    def sole_of_object(self, entity: int) -> list[Fact]:
        """The facts ``relation(?, entity)`` that no second subject shares."""
        rows = self._rows_of_object(entity)
        _, first, count = np.unique(self.relation[rows], return_index=True, return_counts=True)
        return [self[number] for number in rows[first[count == 1]].tolist()]

    def _rows_of_subject(self, entity: int) -> Ints:
        return self._by_subject[self._subject_starts[entity] : self._subject_starts[entity + 1]]

    def _rows_of_object(self, entity: int) -> Ints:
        return self._by_object[self._object_starts[entity] : self._object_starts[entity + 1]]

    def _with(self, rows: Ints, relation: Relation) -> list[Fact]:
        return [self[number] for number in rows[self.relation[rows] == relation.number].tolist()]


def _index(keys: Ints, num_entities: int) -> tuple[Ints, npt.NDArray[np.int64]]:
    """Rows ordered by key, and where each key starts among them."""
    order = np.argsort(keys, kind="stable").astype(np.int32)
    return order, np.searchsorted(keys[order], np.arange(num_entities + 1))
