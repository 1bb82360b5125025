"""Which facts hold: who wrote what, what lies where, with a few hubs and many leaves."""

import numpy as np
import numpy.typing as npt

from spaniel.world.entities import Entities
from spaniel.world.facts import Facts, Ints
from spaniel.world.schema import Relation, Schema

SKEW = 2.0
"""An object's chance falls with its popularity rank r as r^(1/SKEW - 1)."""
MIN_FACTS, MAX_FACTS = 4, 6
"""Relations of one subject."""
AGE_GAP = 0.08
"""Least difference in age where a relation wants an older object; ages are in [0, 1)."""
DULL_WORDS = frozenset({"the", "of", "and", "for"})

Pairs = tuple[Ints, Ints]


def make_facts(entities: Entities, seed: int) -> Facts:
    """Draw every fact of a world."""
    rng = np.random.default_rng([seed, len(entities), 2])
    schema = entities.schema
    age = rng.random(len(entities))
    female = np.array(entities.female)
    popular = [rng.permutation(np.array(span)) for span in entities.ranges]
    wanted = _choose_relations(entities, rng)
    pairs: dict[str, Pairs] = {}
    for relation in schema.relations:
        subjects = wanted[relation.number]
        if relation.is_attribute:
            pairs[relation.name] = subjects, _values(schema, relation, subjects, age, rng)
            continue
        pool = popular[schema.kind_number(relation.object)]
        if relation.female:
            pool = pool[female[pool]]
        drawn = _objects(relation, subjects, pool, age, pairs, rng)
        pairs[relation.name] = _without_hints(entities, relation, *drawn)
    numbers = [np.full(len(pairs[r.name][0]), r.number, np.int16) for r in schema.relations]
    subject = np.concatenate([pairs[r.name][0] for r in schema.relations]).astype(np.int32)
    object = np.concatenate([pairs[r.name][1] for r in schema.relations]).astype(np.int32)
    return Facts(schema, len(entities), subject, np.concatenate(numbers), object)


def _choose_relations(entities: Entities, rng: np.random.Generator) -> list[Ints]:
    """[num_relations] the subjects that have each relation: weighted, without repetition."""
    schema = entities.schema
    wanted: list[Ints] = [np.empty(0, np.int32) for _ in schema.relations]
    for kind, span in zip(schema.kinds, entities.ranges, strict=True):
        own = [r for r in schema.relations if r.subject == kind.name]
        log_weights = np.log([r.weight for r in own])
        keys = log_weights + rng.gumbel(size=(len(span), len(own)))
        ranks = np.argsort(np.argsort(-keys, axis=1), axis=1)
        count = rng.integers(MIN_FACTS, MAX_FACTS + 1, size=(len(span), 1))
        for column, relation in enumerate(own):
            chosen = np.flatnonzero(ranks[:, column] < count[:, 0]) + span.start
            wanted[relation.number] = chosen.astype(np.int32)
    return wanted


def _values(
    schema: Schema,
    relation: Relation,
    subjects: Ints,
    age: npt.NDArray[np.float64],
    rng: np.random.Generator,
) -> Ints:
    low, high = relation.range
    if relation.name == "birth_year":
        drawn = high - np.floor(age[subjects] * (high - low))
    elif relation.value == "year":
        drawn = rng.integers(low, high, len(subjects), endpoint=True)
    elif relation.value == "number":
        drawn = np.round(np.exp(rng.uniform(np.log(low), np.log(high), len(subjects))))
    else:
        drawn = rng.integers(0, len(schema.vocabularies[relation.value]), len(subjects))
    return drawn.astype(np.int32)


def _objects(
    relation: Relation,
    subjects: Ints,
    pool: Ints,
    age: npt.NDArray[np.float64],
    pairs: dict[str, Pairs],
    rng: np.random.Generator,
) -> Pairs:
    """Objects for the subjects; a subject for which none fits is left out."""
    if relation.within:
        return _inside(subjects, pairs[relation.within], rng)
    if relation.pairing:
        return _couples(subjects, pool, rng)
    if relation.stated_on == "object":
        objects = rng.permutation(pool)[: len(subjects)]
        return rng.permutation(subjects)[: len(objects)], objects
    if not relation.is_functional:
        return _several(relation.most, subjects, pool, rng)
    objects = _skewed(pool, len(subjects), rng)
    for _ in range(8):
        bad = objects == subjects
        if relation.older:
            bad |= age[objects] < age[subjects] + AGE_GAP
        objects[bad] = _skewed(pool, int(bad.sum()), rng)
    good = objects != subjects
    if relation.older:
        good &= age[objects] >= age[subjects] + AGE_GAP
    return subjects[good], objects[good]


def _skewed(pool: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Draws from a pool whose front is popular."""
    picked: Ints = pool[(len(pool) * rng.random(count) ** SKEW).astype(np.int64)]
    return picked.astype(np.int32)


def _inside(subjects: Ints, contained: Pairs, rng: np.random.Generator) -> Pairs:
    """One of the things that the contained relation places in each subject."""
    inner, outer = contained
    order = rng.permutation(len(inner))
    found = dict(zip(outer[order].tolist(), inner[order].tolist(), strict=True))
    kept = [s for s in subjects.tolist() if s in found]
    return np.array(kept, np.int32), np.array([found[s] for s in kept], np.int32)


def _couples(subjects: Ints, pool: Ints, rng: np.random.Generator) -> Pairs:
    """Disjoint couples: the partners are no subjects, and nobody is taken twice."""
    partners = rng.permutation(np.setdiff1d(pool, subjects))[: len(subjects)]
    return rng.permutation(subjects)[: len(partners)], partners.astype(np.int32)


def _several(most: int, subjects: Ints, pool: Ints, rng: np.random.Generator) -> Pairs:
    """Two to ``most`` different objects a subject."""
    count = rng.integers(2, most + 1, len(subjects))
    subject = np.repeat(subjects, count)
    both = np.stack([subject, _skewed(pool, len(subject), rng)], axis=1)
    both = np.unique(both, axis=0)
    sizes = np.unique(both[:, 0], return_counts=True)
    lonely = sizes[0][sizes[1] < 2]
    both = both[~np.isin(both[:, 0], lonely)]
    return both[:, 0], both[:, 1]


def _without_hints(entities: Entities, relation: Relation, subject: Ints, object: Ints) -> Pairs:
    """Drop facts that the title would give away: ``Marrow Hall`` is not in Marrow.

    A relation of several objects loses a subject's facts together, so that two remain or none.
    """
    hinting = {
        s
        for s, o in zip(subject.tolist(), object.tolist(), strict=True)
        if _words(entities.names[s]) & _words(entities.names[o])
    }
    good = ~np.isin(subject, np.fromiter(hinting, np.int32, len(hinting)))
    return subject[good], object[good]


def _words(name: str) -> set[str]:
    words = {word.removesuffix("'s") for word in name.casefold().split()}
    return {word for word in words if len(word) > 2} - DULL_WORDS
