"""Who is in the world: kind, name, title and docid of every page."""

from collections import defaultdict
from dataclasses import dataclass
from random import Random

import numpy as np

from spaniel.world.names import NameMaker
from spaniel.world.schema import Kind, Schema

COPY_FRAC = 0.045
"""Entities that take another's name; with their originals twice as many share a name."""
COPIERS = ("person", "ship", "film", "song", "book", "painting", "band")
COPIED = ("person", "town", "region", "river", "book", "film", "song", "ship", "band")
WORKS = ("book", "film", "song", "painting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entities:
    """Parallel lists over the entities, which are grouped by kind."""

    schema: Schema
    kind: tuple[int, ...]
    """Position in ``schema.kinds``."""
    form: tuple[int, ...]
    """Position in the kind's ``forms``: a person's occupation, a town's type."""
    female: tuple[bool, ...]
    names: tuple[str, ...]
    titles: tuple[str, ...]
    """The name, with the kind or occupation in brackets where the name is shared."""
    docids: tuple[str, ...]
    """Opaque; their order is unrelated to the order of the entities."""
    ranges: tuple[range, ...]
    """The entities of each kind."""

    def __len__(self) -> int:
        return len(self.kind)

    def kind_of(self, entity: int) -> Kind:
        """Its kind."""
        return self.schema.kinds[self.kind[entity]]

    def form_of(self, entity: int) -> str:
        """What its first sentence calls it."""
        return self.kind_of(entity).forms[self.form[entity]]

    def is_shared(self, entity: int) -> bool:
        """Another entity has the same name."""
        return self.titles[entity] != self.names[entity]

    def label(self, entity: int) -> str:
        """What tells it from its namesake: the occupation of a person, else the kind."""
        kind = self.kind_of(entity)
        return self.form_of(entity) if kind.name == "person" else kind.nouns[0]

    def mention(self, entity: int) -> str:
        """The name as running text has it: ``the Vask Medal``, ``Brolwick``."""
        name = self.names[entity]
        article = self.kind_of(entity).article and not name.startswith(("The ", "A ", "An "))
        return f"the {name}" if article else name


def make_entities(schema: Schema, pages: int, seed: int) -> tuple[Entities, str]:
    """All entities of a world, and the world's own name."""
    rng = Random(f"world/{seed}/{pages}/entities")
    ranges = _ranges(schema, pages)
    kind = [number for number, span in enumerate(ranges) for _ in span]
    form = [rng.randrange(len(schema.kinds[k].forms)) for k in kind]
    female = [rng.random() < 0.5 for _ in kind]
    maker = NameMaker(rng, len(ranges[schema.kind_number("person")]))
    world = maker.world()
    names = _draw_names(schema, ranges, female, maker)
    originals = _share_names(schema, kind, female, names, rng)
    _separate_namesakes(schema, kind, form, originals)
    titles = _titles(schema, kind, form, names)
    entities = Entities(
        schema=schema,
        kind=tuple(kind),
        form=tuple(form),
        female=tuple(female),
        names=tuple(names),
        titles=tuple(titles),
        docids=_docids(pages, seed),
        ranges=ranges,
    )
    return entities, world


def _ranges(schema: Schema, pages: int) -> tuple[range, ...]:
    """Consecutive ranges in proportion to the shares, at least four of each kind."""
    total = sum(kind.share for kind in schema.kinds)
    sizes = [max(4, round(pages * kind.share / total)) for kind in schema.kinds]
    sizes[0] += pages - sum(sizes)
    ends = np.cumsum(sizes).tolist()
    return tuple(range(end - size, end) for end, size in zip(ends, sizes, strict=True))


def _draw_names(
    schema: Schema, ranges: tuple[range, ...], female: list[bool], maker: NameMaker
) -> list[str]:
    names = [""] * len(female)
    town_span = ranges[schema.kind_number("town")]
    for entity in town_span:
        names[entity] = maker.town()
    towns = names[town_span.start : town_span.stop]
    for kind, span in zip(schema.kinds, ranges, strict=True):
        for entity in span:
            if kind.name == "person":
                names[entity] = maker.person(female=female[entity])
            elif kind.name in WORKS:
                names[entity] = maker.work()
            elif kind.name in ("region", "river", "ship"):
                names[entity] = getattr(maker, kind.name)()
            elif kind.name != "town":
                names[entity] = getattr(maker, kind.name)(towns)
    return names


def _share_names(
    schema: Schema, kind: list[int], female: list[bool], names: list[str], rng: Random
) -> dict[int, int]:
    """Let some entities take the name of another; returns copier -> original."""
    kinds = [schema.kinds[k].name for k in kind]
    copiers = [e for e, k in enumerate(kinds) if k in COPIERS]
    copiers = rng.sample(copiers, round(COPY_FRAC * len(kinds)))
    taken = set(copiers)
    pools: dict[str, list[int]] = defaultdict(list)
    for entity, k in enumerate(kinds):
        if k in COPIED and entity not in taken:
            pools[k].append(entity)
    for pool in pools.values():
        rng.shuffle(pool)
    originals = {}
    for copier in copiers:
        own = kinds[copier]
        choice = own if own == "person" else rng.choice([k for k in COPIED if k != own])
        if not pools[choice]:
            continue
        original = pools[choice].pop()
        names[copier] = names[original]
        female[copier] = female[original]
        originals[copier] = original
    return originals


def _separate_namesakes(
    schema: Schema, kind: list[int], form: list[int], originals: dict[int, int]
) -> None:
    """Give persons of one name two occupations, so that the titles differ."""
    for copier, original in originals.items():
        if kind[copier] == kind[original] and form[copier] == form[original]:
            form[copier] = (form[copier] + 1) % len(schema.kinds[kind[copier]].forms)


def _titles(schema: Schema, kind: list[int], form: list[int], names: list[str]) -> list[str]:
    count: dict[str, int] = defaultdict(int)
    for name in names:
        count[name] += 1
    titles = []
    for k, f, name in zip(kind, form, names, strict=True):
        info = schema.kinds[k]
        label = info.forms[f] if info.name == "person" else info.nouns[0]
        titles.append(f"{name} ({label})" if count[name] > 1 else name)
    return titles


def _docids(pages: int, seed: int) -> tuple[str, ...]:
    order = np.random.default_rng([seed, pages, 1]).permutation(pages).tolist()
    width = max(4, len(f"{pages - 1:x}"))
    return tuple(f"w{number:0{width}x}" for number in order)
