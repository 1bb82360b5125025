"""Invented names: every seed draws its own sounds, affixes and words.

A ``NameMaker`` gives names that nobody else in its world has. Two seeds share sounds, not
names: a stem is two or three syllables over inventories that the seed chose.
"""

from collections.abc import Callable
from random import Random

from spaniel.world.schema import read_table

MAX_TRIES = 10_000


class NameMaker:
    """Draws names of one world, each once.

    Args:
        rng: the world's own randomness.
        size: persons expected; sets how many family and given names there are.
    """

    def __init__(self, rng: Random, size: int) -> None:
        self.rng = rng
        self.used: set[str] = set()
        tables = read_table("names")
        sounds, words = tables["sounds"], tables["words"]
        self._onsets: list[str] = rng.sample(sounds["onsets"], 10) + rng.sample(
            sounds["clusters"], 8
        )
        self._nuclei: list[str] = 2 * rng.sample(sounds["vowels"], 4) + rng.sample(
            sounds["glides"], 3
        )
        self._codas: list[str] = rng.sample(sounds["codas"], 12)
        self._endings: dict[str, list[str]] = {
            k: rng.sample(v, len(v) // 3 + 1) for k, v in tables["endings"].items()
        }
        self._adjectives: list[str] = rng.sample(words["adjectives"], 40)
        self._nouns: list[str] = rng.sample(words["nouns"], 45)
        self._tails: dict[str, list[str]] = tables["tails"]
        self._stems: set[str] = set()
        given = max(24, round(2 * size**0.5))
        self.female_names = [self._word("female") for _ in range(given)]
        self.male_names = [self._word("male") for _ in range(given)]
        self._given = self.female_names + self.male_names
        self.families = [self._word("family") for _ in range(max(30, size // 4))]

    def person(self, *, female: bool) -> str:
        """A given and a family name."""
        pool = self.female_names if female else self.male_names
        return self._new(lambda: f"{self._skewed(pool)} {self._skewed(self.families)}")

    def town(self) -> str:
        """``Brolwick``."""
        return self._fresh_word("town")

    def region(self) -> str:
        """``Threnovia``."""
        return self._fresh_word("region")

    def river(self) -> str:
        """``Skaulen``."""
        return self._fresh_word("river")

    def ship(self) -> str:
        """An invented word, or an adjective and a noun."""
        if self.rng.random() < 0.6:
            return self._new(lambda: self._stem(2).capitalize())
        return self._new(self._lettered)

    def work(self) -> str:
        """The title of a book, film, song or painting: common words or invented ones."""
        return self._new(self._title)

    def company(self, towns: list[str]) -> str:
        """``Orrel & Sons``: after a family, a town or nothing."""
        return self._new(lambda: f"{self._base(towns)} {self._tail('company')}")

    def school(self, towns: list[str]) -> str:
        """``Vask Academy``."""
        return self._new(lambda: f"{self._base(towns)} {self._tail('school')}")

    def building(self, towns: list[str]) -> str:
        """``Marrow Hall``."""
        return self._new(lambda: f"{self._base(towns)} {self._tail('building')}")

    def prize(self, towns: list[str]) -> str:
        """``Vask Medal``."""
        return self._new(lambda: f"{self._base(towns)} {self._tail('prize')}")

    def band(self, towns: list[str]) -> str:
        """``Marrow Ramblers``, or ``The Pale Herons``."""
        if self.rng.random() < 0.6:
            return self._new(lambda: f"{self._base(towns)} {self._tail('band')}")
        return self._new(lambda: f"The {self._adjective()} {self._stem(2).capitalize()}s")

    def world(self) -> str:
        """One lower-case word."""
        return self._stem(3)

    def _tail(self, kind: str) -> str:
        return self.rng.choice(self._tails[kind])

    def _base(self, towns: list[str]) -> str:
        roll = self.rng.random()
        if roll < 0.3:
            return self.rng.choice(self.families)
        if roll < 0.6:
            return self.rng.choice(towns)
        return self._stem(2).capitalize()

    def _title(self) -> str:
        roll = self.rng.random()
        invented = self._stem(2).capitalize()
        if roll < 0.2:
            return f"The {self._adjective()} {self._noun()}"
        if roll < 0.4:
            return f"The {self._noun()} of {invented}"
        if roll < 0.5:
            return f"{invented}'s {self._noun()}"
        if roll < 0.6:
            return f"{self._adjective()} {invented}"
        if roll < 0.7:
            return f"The {self._adjective()} {self._noun()} of {invented}"
        if roll < 0.8:
            return f"{self._noun()} and {self._noun()}"
        if roll < 0.9:
            noun = self._noun()
            article = "An" if noun[0] in "AEIOU" else "A"
            return f"{article} {noun} for {self.rng.choice(self._given)}"
        return f"{invented} {self._noun()}"

    def _lettered(self) -> str:
        return f"{self._adjective()} {self._stem(2).capitalize()}"

    def _adjective(self) -> str:
        return self.rng.choice(self._adjectives).capitalize()

    def _noun(self) -> str:
        return self.rng.choice(self._nouns).capitalize()

    def _skewed(self, pool: list[str]) -> str:
        """Few common names, many rare ones."""
        return pool[int(len(pool) * self.rng.random() ** 1.6)]

    def _fresh_word(self, style: str) -> str:
        # Short names are tried first: a small model has to copy them.
        tries = iter(range(MAX_TRIES))
        return self._new(lambda: self._affixed(style, 1 + (next(tries) > 20)))

    def _word(self, style: str) -> str:
        """An affixed word, new among words, that is not yet a name of anything."""
        for tried in range(MAX_TRIES):
            word = self._affixed(style, 1 + (tried > 20))
            if word not in self._stems:
                self._stems.add(word)
                return word
        raise RuntimeError(f"no new {style} name in {MAX_TRIES:,} tries")

    def _ending(self, style: str) -> str:
        return self.rng.choice(self._endings[style])

    def _affixed(self, style: str, syllables: int) -> str:
        return (self._stem(syllables) + self._ending(style)).capitalize()

    def _stem(self, syllables: int) -> str:
        rng = self.rng
        parts = []
        for i in range(syllables):
            parts.append(rng.choice(self._onsets) + rng.choice(self._nuclei))
            if i == syllables - 1:
                parts.append(rng.choice(self._codas))
        return "".join(parts)

    def _new(self, draw: Callable[[], str]) -> str:
        for _ in range(MAX_TRIES):
            name = draw()
            if name.casefold() not in self.used:
                self.used.add(name.casefold())
                return name
        raise RuntimeError(f"no new name in {MAX_TRIES:,} tries")
