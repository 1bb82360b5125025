"""The text of a page: what it is about, its facts in some order, a few idle sentences.

Everything on a page is drawn from the page's own random stream, so that a page can be
written alone, and so that a question can ask which sentence a fact got.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from spaniel.types import Document
from spaniel.world.entities import Entities
from spaniel.world.facts import Fact, Facts
from spaniel.world.schema import Relation

JOIN_FRAC = 0.3
"""Chance that two statements share a sentence."""
MIN_WORDS, FULL_WORDS = 40, 72
"""Idle sentences fill a page up to the first and never start beyond the second."""
LINKERS = (", and ", "; ", ", while ")
MARK = re.compile("\x01(\\d+)\x02")
"""An entity in a text that is not yet resolved to its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The facts of one relation on one page, said by one sentence template."""

    facts: tuple[Fact, ...]
    template: int
    """Position in ``Relation.page``."""

    @property
    def relation(self) -> Relation:
        """What the facts have in common."""
        return self.facts[0].relation


def plan_page(facts: Facts, page: int, seed: int) -> tuple[list[Statement], Random]:
    """What a page says, in order, and its random stream for the rest of the writing."""
    groups: dict[tuple[int, int], list[Fact]] = {}
    for fact in facts.stated_on(page):
        # Facts stated on their object's page have one object and many possible subjects.
        other = -1 if fact.page == fact.subject else fact.subject
        groups.setdefault((fact.relation.number, other), []).append(fact)
    rng = Random(f"world/{seed}/page/{page}")
    statements = [
        Statement(facts=tuple(group), template=rng.randrange(len(group[0].relation.page)))
        for group in groups.values()
    ]
    rng.shuffle(statements)
    return statements, rng


def write_page(entities: Entities, facts: Facts, page: int, seed: int, host: str) -> Document:
    """The document of one entity: 35 to 90 words, links in text order."""
    statements, rng = plan_page(facts, page, seed)
    writer = _Writer(entities, page, rng)
    writer.introduce()
    writer.state(statements)
    writer.idle(min(2, rng.randrange(4)))
    text, links = writer.finish()
    title = entities.titles[page]
    return Document(
        docid=entities.docids[page],
        title=title,
        text=text,
        url=f"https://{host}/{title.replace(' ', '_')}",
        links=tuple(entities.docids[entity] for entity in links),
        metadata={"kind": entities.kind_of(page).name},
    )


class _Writer:
    """Grows the text of one page."""

    def __init__(self, entities: Entities, page: int, rng: Random) -> None:
        self.entities, self.page, self.rng = entities, page, rng
        self.kind = entities.kind_of(page)
        self.form = entities.form_of(page)
        self.sentences: list[str] = []
        self.links: dict[int, None] = {}
        if self.kind.name != "person":
            self.pronouns = ("it", "its", "it")
        else:
            self.pronouns = ("she", "her", "her") if entities.female[page] else ("he", "his", "him")

    @property
    def num_words(self) -> int:
        return sum(sentence.count(" ") + 1 for sentence in self.sentences)

    def introduce(self) -> None:
        template = self.rng.choice(self.kind.intro)
        adjective = self.rng.choice(self.kind.adjectives)
        text = template.replace("{a}", adjective).replace("{f}", self.form)
        text = re.sub(r"\ba (?=[aeiou])", "an ", text)
        self._add(text.replace("{n}", _mark(self.page)))

    def state(self, statements: list[Statement]) -> None:
        rest = list(statements)
        while rest:
            sentence = self._clause(rest.pop(0))
            if rest and self.rng.random() < JOIN_FRAC:
                sentence += self.rng.choice(LINKERS) + self._clause(rest.pop(0), brief=True)
            self._add(sentence)

    def idle(self, count: int) -> None:
        """Add ``count`` idle sentences, fewer on a full page and more on a short one."""
        tables = self.entities.schema.distractors
        everyone = range(len(self.entities))
        peers = self.entities.ranges[self.entities.kind[self.page]]
        own = tables.get(self.kind.name, ())
        for line in self.rng.sample(tables["any"] + own, 5):
            if self.num_words > FULL_WORDS or (count <= 0 and self.num_words >= MIN_WORDS):
                return
            count -= 1
            other = self.rng.choice(peers if line in own else everyone)
            if other != self.page:
                self._add(self._refer(line).replace("{x}", _mark(other)))

    def finish(self) -> tuple[str, Iterable[int]]:
        """The text, and the other entities it mentions, in order."""
        return " ".join(self.sentences), self.links

    def _clause(self, statement: Statement, *, brief: bool = False) -> str:
        relation = statement.relation
        schema = self.entities.schema
        if relation.is_attribute:
            others = [schema.value_text(relation, f.object) for f in statement.facts]
        else:
            others = [
                _mark(f.object if f.page == f.subject else f.subject) for f in statement.facts
            ]
        self.rng.shuffle(others)
        listed = " and ".join([", ".join(others[:-1]), others[-1]] if others[1:] else others)
        template = relation.page[statement.template]
        return self._refer(template, brief=brief).replace("{o}", listed)

    def _refer(self, template: str, *, brief: bool = False) -> str:
        """Fill in {p} {pp} {po}: the first by pronoun, noun or name, later ones by pronoun."""
        pronoun, possessive, object_form = self.pronouns
        roll = self.rng.random()
        if brief or roll < 0.5:
            names = self.pronouns
        else:
            name = f"the {self.form}" if roll < 0.8 else _mark(self.page)
            names = (name, f"{name}'s", name)
        slot = re.search(r"\{pp?o?\}", template)
        if slot:
            first = {"{p}": names[0], "{pp}": names[1], "{po}": names[2]}[slot[0]]
            template = template.replace(slot[0], first, 1)
        template = template.replace("{pp}", possessive).replace("{po}", object_form)
        return template.replace("{p}", pronoun)

    def _add(self, sentence: str) -> None:
        for mark in MARK.finditer(sentence):
            if int(mark[1]) != self.page:
                self.links.setdefault(int(mark[1]))
        text = MARK.sub(lambda mark: self.entities.mention(int(mark[1])), sentence)
        self.sentences.append(text[0].upper() + text[1:] + ".")


def _mark(entity: int) -> str:
    return f"\x01{entity}\x02"
