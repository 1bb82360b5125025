"""What the world is made of: kinds of entities, relations between them, and their wording.

The tables lie beside this file in ``prose/*.toml``; ``load_schema`` reads them once, opens
the alternatives ``[a|b]`` and refuses a table that contradicts itself.
"""

import itertools
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from spaniel.errors import DataError

TABLES = ("people", "places", "works", "groups", "things")
WORDINGS = ("page", "np", "ask", "inverse", "more", "less")
NUMERIC = ("year", "number")
MAX_TEMPLATES = 255
"""A template's number fits a byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of entity and the words around it."""

    name: str
    share: float
    """Of the pages, in percent."""
    article: bool = False
    """Its names take "the" in running text."""
    nouns: tuple[str, ...]
    """What a question calls one."""
    forms: tuple[str, ...]
    """What the first sentence calls one: a person's occupation, a town's type."""
    adjectives: tuple[str, ...]
    intro: tuple[str, ...]
    """First sentences over {n} name, {f} form, {a} adjective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One relation between entities, or one attribute, with every way to say it."""

    number: int
    """Position in ``Schema.relations``: what the fact table stores."""
    name: str
    subject: str
    """Kind of the subject."""
    object: str = ""
    """Kind of the object; empty for an attribute."""
    value: str = ""
    """``year``, ``number`` or the name of a vocabulary; empty for a relation."""
    range: tuple[int, int] = (0, 0)
    """Least and greatest value of a year or number."""
    unit: str = ""
    """Follows a number."""
    weight: float
    """How likely a subject has it, relative to the others of its kind."""
    most: int = 1
    """Objects of one subject; above 1 the subject has 2 to ``most`` of them."""
    stated_on: str = "subject"
    """Whose page says it: ``subject`` or ``object``."""
    older: bool = False
    """The object comes before the subject in time, so that the relation has no ring."""
    female: bool = False
    """The object is a woman."""
    pairing: bool = False
    """Symmetric, and nobody is in two pairs."""
    within: str = ""
    """The object is one that this other relation places in the subject."""
    page: tuple[str, ...]
    """Sentences over {p} {pp} {po} the page's entity and {o} the other side."""
    np: tuple[str, ...]
    """Noun phrases for the object over {x} the subject."""
    ask: tuple[str, ...] = ()
    """Whole questions for the object over {x} the subject."""
    inverse: tuple[str, ...] = ()
    """Clauses behind the subject's noun over {x} the object."""
    more: tuple[str, ...] = ()
    """Predicates of the side with the greater value."""
    less: tuple[str, ...] = ()
    """Predicates of the side with the smaller value."""

    @property
    def is_attribute(self) -> bool:
        """The object is a value, not an entity."""
        return not self.object

    @property
    def is_functional(self) -> bool:
        """A subject has at most one object."""
        return self.most == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """All kinds, relations, vocabularies and distractors."""

    kinds: tuple[Kind, ...]
    relations: tuple[Relation, ...]
    vocabularies: dict[str, tuple[str, ...]]
    distractors: dict[str, tuple[str, ...]]
    """By kind of the page, and ``any``; over {p} {pp} {po} and {x} another entity."""

    def kind_number(self, name: str) -> int:
        """Position of a kind."""
        return next(i for i, kind in enumerate(self.kinds) if kind.name == name)

    def relation(self, name: str) -> Relation:
        """The relation of that name. Raises ``KeyError``."""
        for relation in self.relations:
            if relation.name == name:
                return relation
        raise KeyError(name)

    def value_text(self, relation: Relation, value: int) -> str:
        """An attribute's value as pages and answers write it: ``1873``, ``12,400 metres``."""
        if relation.value == "year":
            return str(value)
        if relation.value == "number":
            return f"{value:,} {relation.unit}".rstrip()
        return self.vocabularies[relation.value][value]


@cache
def load_schema() -> Schema:
    """The tables, read and checked. Raises ``DataError`` when one contradicts itself."""
    base = read_table("kinds")
    kinds = tuple(
        Kind(name=name, **{k: _plain(v) for k, v in table.items()})
        for name, table in base["kinds"].items()
    )
    vocabularies = {name: tuple(words) for name, words in base["vocabularies"].items()}
    rows = [row for table in TABLES for row in read_table(table)["relations"]]
    relations = tuple(_relation(number, row) for number, row in enumerate(rows))
    distractors = {kind: _expand(lines) for kind, lines in base["distractors"].items()}
    schema = Schema(
        kinds=kinds, relations=relations, vocabularies=vocabularies, distractors=distractors
    )
    _check(schema)
    return schema


def read_table(name: str) -> dict[str, Any]:
    """One of the TOML tables in ``prose``."""
    file = resources.files("spaniel.world") / "prose" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _relation(number: int, row: dict[str, Any]) -> Relation:
    fields = {key: _plain(value) for key, value in row.items()}
    fields |= {key: _expand(row[key]) for key in WORDINGS if key in row}
    return Relation(number=number, **fields)


def _expand(lines: Iterable[str]) -> tuple[str, ...]:
    """Each line once for each choice of its ``[a|b]`` alternatives."""
    done = []
    for line in lines:
        parts = re.split(r"\[([^\]]*)\]", line)
        choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
        done += ["".join(choice) for choice in itertools.product(*choices)]
    return tuple(done)


def _check(schema: Schema) -> None:
    kinds = {kind.name for kind in schema.kinds}
    names = [relation.name for relation in schema.relations]
    if len(set(names)) != len(names):
        raise DataError("world tables: relation names must differ")
    for r in schema.relations:
        where = f"world tables: relation {r.name}"
        if r.subject not in kinds or (r.object and r.object not in kinds):
            raise DataError(f"{where}: unknown kind in {r.subject} -> {r.object}")
        if bool(r.object) == bool(r.value):
            raise DataError(f"{where} needs either object or value")
        if r.value and r.value not in (*NUMERIC, *schema.vocabularies):
            raise DataError(f"{where}: unknown vocabulary {r.value}")
        if not 6 <= len(r.page) <= MAX_TEMPLATES:
            raise DataError(f"{where} needs 6 to {MAX_TEMPLATES} sentences, has {len(r.page)}")
        if not all("{o}" in line for line in r.page):
            raise DataError(f"{where}: every sentence must name the object as {{o}}")
        if not all("{x}" in line for line in (*r.np, *r.ask, *r.inverse)):
            raise DataError(f"{where}: every question wording must name the other side as {{x}}")
