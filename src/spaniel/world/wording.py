"""From a query to an English question.

For each fact the wording looks at the sentence that states it. About half of the time it
takes words that the sentence does not use, so that matching words alone does not find the page.
"""

import re
from dataclasses import dataclass
from functools import cache
from random import Random

from spaniel.world.entities import Entities
from spaniel.world.facts import Fact, Facts
from spaniel.world.pages import plan_page
from spaniel.world.queries import Anchor, Both, Extreme, Follow, Query, evaluate, only

PARAPHRASE_FRAC = 0.2
"""Chance of asking in none of the page's words although a wording with some of them exists.

Many sentences have no such wording; with them about half of all relations are asked for in
other words than their page's.
"""
QUALIFY_FRAC = 0.3
"""Chance that a name that needs no qualifier has one."""
HEAVY_WORDS = 10
"""A longer phrase stands at the end of its clause, so that clauses do not nest in the middle."""
OPENERS = ("Consider {x}: ", "Take {x}. ", "Think of {x}. ", "This is about {x}. ", "Given {x}, ")
THING_WRAPS = ("what is the name of {x}?", "name {x}.", "identify {x}.", "what is {x} called?")
PERSON_WRAPS = ("who is {x}?", "name {x}.", "identify {x}.", "what is the name of {x}?")
VALUE_WRAPS = ("what is {x}?", "find out {x}.", "state {x}.", "tell me {x}.")
WHICH = ("of {a} and {b}, which {p}?", "which {p}: {a} or {b}?", "{a} or {b}: which of them {p}?")
WHICHEVER = ("whichever of {a} and {b} {p}", "the one of {a} and {b} that {p}")
COMPARE = ("compare {a} and {b}. ", "take {a} and {b}. ", "look at {a} and {b}. ")
RELATIVE = ("who ", "whose ", "that ", "to whom ", "of which ", "in which ", "where ")
COMMON = """
a an and are as at be been by did do does for from had has have how in into is it its of on one
or out that the their them this to under up was were what when where which who whom whose with
"""
"""Words that carry no meaning of their own."""


@cache
def content_words(template: str) -> frozenset[str]:
    """The stems of a template that carry meaning."""
    words = re.findall(r"[a-z]+", re.sub(r"\{\w+\}", " ", template.lower()))
    return frozenset(re.sub(r"(ing|ed|es|er|s)$", "", w) for w in words if w not in COMMON.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An entity that a question names by description."""

    phrase: str
    entity: int
    pages: tuple[int, ...]
    """What has to be read to know it."""
    preface: str = ""
    """A sentence that has said its part when the entity is known."""


class Wording:
    """Words the questions of one world.

    Args:
        seed: of the world: it says how each page states its facts.
        rng: the questions' randomness.
    """

    def __init__(self, entities: Entities, facts: Facts, seed: int, rng: Random) -> None:
        self.entities, self.facts, self.seed, self.rng = entities, facts, seed, rng
        self._preface = ""
        self.parts: list[Part] = []

    def question(self, query: Query) -> str:
        """One sentence or two, with a capital and a full stop or question mark.

        ``parts`` then holds what it names by description.
        """
        self._preface, self.parts = "", []
        if isinstance(query, Extreme):
            text = self._which(query)
        elif isinstance(query, Follow) and not query.inverse and query.relation.ask:
            text = self._ask(query)
        else:
            text = self._wrap(query)
        text = self._preface + text
        return re.sub(r"(^|[.?] )([a-z])", lambda m: m[1] + m[2].upper(), text)

    def phrase(self, query: Query, result: int) -> str:
        """A noun phrase for the result of a query, kept among ``parts`` unless it is a name."""
        text = self._phrase(query, result)
        if not isinstance(query, Anchor):
            _, trail = only(self.facts, query)
            preface = self._preface if isinstance(query, Extreme) else ""
            pages = tuple(dict.fromkeys(fact.page for fact in trail))
            self.parts.append(Part(phrase=text, entity=result, pages=pages, preface=preface))
        return text

    def _phrase(self, query: Query, result: int) -> str:
        if isinstance(query, Anchor):
            return self._name(query.entity)
        if isinstance(query, Extreme):
            return self._whichever(query)
        if isinstance(query, Both):
            return self._conjunction(query, result)
        if query.inverse and not query.relation.pairing:
            return f"the {self._noun(result)} {self._clause(query, result)}"
        return self._fill(query.relation.np, query, result)

    def _name(self, entity: int) -> str:
        if self.entities.is_shared(entity) or self.rng.random() < QUALIFY_FRAC:
            return f"the {self.entities.label(entity)} {self.entities.names[entity]}"
        return self.entities.mention(entity)

    def _noun(self, entity: int) -> str:
        return self.rng.choice(self.entities.kind_of(entity).nouns)

    def _fill(self, templates: tuple[str, ...], query: Follow, result: int, x: str = "") -> str:
        start, _ = only(self.facts, query.arg)
        x = x or self.phrase(query.arg, start)
        if is_heavy(x):
            templates = final(templates) or templates
        fact = evaluate(self.facts, query)[result][-1]
        return self._choose(templates, fact).replace("{x}", x)

    def _clause(self, query: Follow, result: int) -> str:
        return self._fill(query.relation.inverse, query, result)

    def _choose(self, templates: tuple[str, ...], fact: Fact) -> str:
        """A wording near to or far from the sentence that states the fact."""
        statements, _ = plan_page(self.facts, fact.page, self.seed)
        number = next(s.template for s in statements if fact in s.facts)
        stated = content_words(fact.relation.page[number])
        far = [t for t in templates if not content_words(t) & stated]
        near = [t for t in templates if content_words(t) & stated]
        pool = far if self.rng.random() < PARAPHRASE_FRAC else near
        return self.rng.choice(pool or templates)

    def _conjunction(self, query: Both, result: int) -> str:
        sides = [query.left, query.right]
        forward = [side for side in sides if not side.inverse]
        clauses = [self._clause(side, result) for side in sides if side.inverse]
        if forward:
            return f"{self._phrase(forward[0], result)} {clauses[0]}"
        clauses.sort(key=len)
        relative = [c.startswith(RELATIVE) for c in clauses]
        if relative[0] > relative[1]:
            clauses.reverse()
        glue = " and " if relative[0] == relative[1] else " "
        return f"the {self._noun(result)} {glue.join(clauses)}"

    def _sides(self, query: Extreme) -> dict[str, str]:
        left, right = (only(self.facts, side)[0] for side in (query.left, query.right))
        words = query.relation.more if query.more else query.relation.less
        winner, _ = only(self.facts, query)
        fact = only(self.facts, Follow(query.relation, Anchor(winner)))[1][-1]
        return {
            "a": self.phrase(query.left, left),
            "b": self.phrase(query.right, right),
            "p": self._choose(words, fact),
        }

    def _whichever(self, query: Extreme) -> str:
        sides = self._sides(query)
        if self.rng.random() < 0.4 and not is_heavy(sides["a"] + " " + sides["b"]):
            return self.rng.choice(WHICHEVER).format(**sides)
        self._preface = self.rng.choice(COMPARE).format(**sides)
        return f"the one that {sides['p']}"

    def _which(self, query: Extreme) -> str:
        return self.rng.choice(WHICH).format(**self._sides(query))

    def _ask(self, query: Follow) -> str:
        result, _ = only(self.facts, query)
        start, _ = only(self.facts, query.arg)
        x = self.phrase(query.arg, start)
        way = self.rng.choices(("whole", "opened", "wrapped"), (0.6, 0.2, 0.2))[0]
        if way == "wrapped":
            return self._wrap(query, x)
        if way == "opened" or (is_heavy(x) and not final(query.relation.ask)):
            this = f"this {self.entities.kind_of(start).nouns[0]}"
            opener = self.rng.choice(OPENERS).replace("{x}", x)
            return opener + self._fill(query.relation.ask, query, result, this)
        return self._fill(query.relation.ask, query, result, x)

    def _wrap(self, query: Query, x: str = "") -> str:
        """Ask for a noun phrase; ``x`` is the phrase of the query's argument, if made already."""
        result, _ = only(self.facts, query)
        if isinstance(query, Follow) and query.relation.is_attribute:
            wraps = VALUE_WRAPS
        else:
            person = self.entities.kind_of(result).name == "person"
            wraps = PERSON_WRAPS if person else THING_WRAPS
        if x and isinstance(query, Follow):
            phrase = self._fill(query.relation.np, query, result, x)
        else:
            phrase = self._phrase(query, result)
        options = (final(wraps) or wraps) if is_heavy(phrase) else wraps
        return self.rng.choice(options).replace("{x}", phrase)


def is_heavy(phrase: str) -> bool:
    """Too long to stand in the middle of a clause."""
    return phrase.count(" ") >= HEAVY_WORDS


def final(templates: tuple[str, ...]) -> tuple[str, ...]:
    """The templates that end with {x}."""
    return tuple(t for t in templates if t.rstrip("?.").endswith("{x}"))
