"""Invented names: every seed draws its own sounds, affixes and words.

A ``NameMaker`` gives names that nobody else in its world has. Two seeds share sounds, not
names: a stem is two or three syllables over inventories that the seed chose.
"""

from collections.abc import Callable
from random import Random

ONSETS = (
    "b br bl c ch cr d dr dw f fl fr g gl gr gw h j k kl kn kr l m n p pl pr qu r s sc sh sk sl "
    "sm sn st str sw t th thr tr tw v vr w wh y z zh"
).split()
NUCLEI = "a e i o u ae ai au ea ei ia ie io oa oe oi oo ou ui y".split()
CODAS = (
    "b ck d f g k l ld lk lm ln m mb n nd nk nt p r rd rg rk rm rn rsk rt rth s sk sp st t th v x z"
).split()
TOWN_ENDINGS = (
    "holm wick ford bury ton stead mouth gate haven burg dal minster by thorpe mere fell ster ham "
    "combe worth field grad"
).split()
REGION_ENDINGS = "ia shire mark land ovia eth any reach or esse vale une ara".split()
RIVER_ENDINGS = "e a en ow er is ess une ild ova ir ond".split()
FAMILY_ENDINGS = "el er ov ski sen ane ick in ard ette os una itz ell am quist".split()
FEMALE_ENDINGS = "a ia ine elle ina eth ora ys ena ie una ilde".split()
MALE_ENDINGS = "o us an or ek im en ard ic os ald un".split()

ADJECTIVES = (
    "quiet pale hollow crimson distant patient broken golden bitter silent winter empty burning "
    "frozen gentle hidden iron last lonely lost narrow open painted restless salt scattered second "
    "secret silver sleeping slow small stolen strange sunken tall tender thirteenth unwritten wild "
    "wooden yellow young borrowed brittle crooked dusty early endless faithful faint fallen "
    "foreign glass green idle late low northern old plain proud rusty"
).split()
NOUNS = (
    "lantern orchard mirror harbour key window garden letter clock staircase candle bridge meadow "
    "anchor bell violin island mountain door winter summer river tower bird fox hare moth heron "
    "willow thorn ember ladder needle compass map chapel kitchen voyage wedding feast funeral "
    "promise shadow echo silence hunger debt journey harvest storm tide fog thaw drum mask crown "
    "carriage attic cellar ferry market archive alphabet almanac apron barn basket button"
).split()
COMPANY_TAILS = (
    "Works|& Sons|Brothers|Trading|Foundry|& Company|Mills|Partners|Industries|Union|Press|House|"
    "Line|Holdings|Guild|Stores"
).split("|")
SCHOOL_TAILS = "Academy|College|School|Institute|Conservatory|Lyceum|Seminary".split("|")
BUILDING_TAILS = "Hall|House|Tower|Court|Rotunda|Pavilion|Arcade|Gallery|Palace|Exchange".split("|")
BAND_TAILS = "Five|Quartet|Ramblers|Singers|Players|Strollers|Sisters|Orchestra|Minstrels".split("|")
PRIZE_TAILS = "Prize|Medal|Award|Cup|Wreath|Laurel|Ribbon".split("|")

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
        self._onsets = rng.sample(ONSETS, 16)
        self._nuclei = rng.sample(NUCLEI, 7)
        self._codas = rng.sample(CODAS, 12)
        self._endings = {
            "town": rng.sample(TOWN_ENDINGS, 6),
            "region": rng.sample(REGION_ENDINGS, 4),
            "river": rng.sample(RIVER_ENDINGS, 4),
            "family": rng.sample(FAMILY_ENDINGS, 5),
            "female": rng.sample(FEMALE_ENDINGS, 4),
            "male": rng.sample(MALE_ENDINGS, 4),
        }
        self._adjectives = rng.sample(ADJECTIVES, 40)
        self._nouns = rng.sample(NOUNS, 45)
        self._stems: set[str] = set()
        given = max(24, round(2 * size**0.5))
        self.female_names = [self._word("female") for _ in range(given)]
        self.male_names = [self._word("male") for _ in range(given)]
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
        return self._new(lambda: f"{self._base(towns)} {self.rng.choice(COMPANY_TAILS)}")

    def school(self, towns: list[str]) -> str:
        """``Vask Academy``."""
        return self._new(lambda: f"{self._base(towns)} {self.rng.choice(SCHOOL_TAILS)}")

    def building(self, towns: list[str]) -> str:
        """``Marrow Hall``."""
        return self._new(lambda: f"{self._base(towns)} {self.rng.choice(BUILDING_TAILS)}")

    def prize(self, towns: list[str]) -> str:
        """``Vask Medal``."""
        return self._new(lambda: f"{self._base(towns)} {self.rng.choice(PRIZE_TAILS)}")

    def band(self, towns: list[str]) -> str:
        """``Marrow Ramblers``, or ``The Pale Herons``."""
        if self.rng.random() < 0.6:
            return self._new(lambda: f"{self._base(towns)} {self.rng.choice(BAND_TAILS)}")
        return self._new(lambda: f"The {self._adjective()} {self._stem(2).capitalize()}s")

    def world(self) -> str:
        """One lower-case word."""
        return self._stem(3)

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
            return f"A {self._noun()} for {self.rng.choice(self.female_names + self.male_names)}"
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
        return self._new(lambda: (self._stem_for_ending() + self._ending(style)).capitalize())

    def _word(self, style: str) -> str:
        """An affixed word, new among words, that is not yet a name of anything."""
        for _ in range(MAX_TRIES):
            word = (self._stem_for_ending() + self._ending(style)).capitalize()
            if word not in self._stems:
                self._stems.add(word)
                return word
        raise RuntimeError(f"no new {style} name in {MAX_TRIES:,} tries")

    def _ending(self, style: str) -> str:
        return self.rng.choice(self._endings[style])

    def _stem_for_ending(self) -> str:
        return self._stem(1 if self.rng.random() < 0.35 else 2)

    def _stem(self, syllables: int) -> str:
        rng = self.rng
        parts = []
        for i in range(syllables):
            parts.append(rng.choice(self._onsets) + rng.choice(self._nuclei))
            if i == syllables - 1 or rng.random() < 0.25:
                parts.append(rng.choice(self._codas))
        return "".join(parts)

    def _new(self, draw: Callable[[], str]) -> str:
        for _ in range(MAX_TRIES):
            name = draw()
            if name.casefold() not in self.used:
                self.used.add(name.casefold())
                return name
        raise RuntimeError(f"no new name in {MAX_TRIES:,} tries")
