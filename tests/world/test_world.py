import os
import subprocess
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaniel.errors import ConfigError
from spaniel.store import hash_records
from spaniel.types import Document
from spaniel.world import World, generate_world
from spaniel.world.questions import contains

SEEDS = st.integers(0, 10_000)


@cache
def world_of(pages: int, seed: int) -> tuple[World, dict[str, Document]]:
    world = generate_world(pages, seed)
    return world, {document.docid: document for document in world.documents()}


def other_side(world: World, fact) -> str:
    """What the page of a fact must name: the object, or the subject on the object's page."""
    if fact.relation.is_attribute:
        return world.entities.schema.value_text(fact.relation, fact.object)
    return world.entities.names[fact.object if fact.page == fact.subject else fact.subject]


def test_the_same_numbers_give_the_same_world_in_other_processes():
    program = (
        "from spaniel.store import hash_records\n"
        "from spaniel.world import generate_world\n"
        "world = generate_world(200, 7)\n"
        "print(hash_records(world.documents()), hash_records(world.questions(40, seed=3)))\n"
    )
    world = generate_world(200, 7)
    here = [hash_records(world.documents()), hash_records(world.questions(40, seed=3))]
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "123"},
    )
    assert run.stdout.split() == here


def test_two_seeds_share_almost_no_names():
    names = [set(world_of(1000, seed)[0].entities.names) for seed in (1, 2)]
    assert len(names[0] & names[1]) <= 0.01 * 1000


def test_one_seed_at_two_sizes_is_two_worlds():
    small, large = (world_of(pages, 1)[0] for pages in (200, 1000))
    assert len(set(small.entities.names) & set(large.entities.names)) <= 0.05 * 200


@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_every_fact_is_named_on_the_page_that_states_it(seed):
    world = generate_world(200, seed)
    texts = [world.page(entity).text for entity in range(200)]
    rows = set()
    for fact in world.facts:
        assert fact.page in (fact.subject, fact.object)
        assert contains(texts[fact.page], other_side(world, fact))
        rows.add((fact.subject, fact.relation.name, fact.object))
    assert len(rows) == len(world.facts)


@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_pages_are_well_formed(seed):
    world = generate_world(200, seed)
    documents = list(world.documents())
    assert len(documents) == len(world) == 200
    assert len({d.title for d in documents}) == len({d.docid for d in documents}) == 200
    assert [d.docid for d in documents] == sorted(d.docid for d in documents)
    for document in documents:
        assert 35 <= len(document.text.split()) <= 90
        assert not set("{}[]|\x01\x02") & set(document.text)
        assert document.url == f"https://{world.name}.wiki/{document.title.replace(' ', '_')}"
        assert document.metadata["kind"] in {kind.name for kind in world.entities.schema.kinds}


@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_links_are_the_entities_mentioned_in_text_order(seed):
    world = generate_world(200, seed)
    for document in world.documents():
        assert document.docid not in document.links
        assert len(set(document.links)) == len(document.links)
        place = 0
        for docid in document.links:
            name = world.entities.names[world.entity_of[docid]]
            place = document.text.index(name, place)


def test_stated_entities_are_linked():
    world, documents = world_of(1000, 1)
    for fact in world.facts:
        if not fact.relation.is_attribute:
            other = fact.object if fact.page == fact.subject else fact.subject
            assert world.entities.docids[other] in documents[world.entities.docids[fact.page]].links


def test_shared_names_are_told_apart_by_their_titles_only():
    world, documents = world_of(1000, 1)
    entities = world.entities
    shared = [e for e in range(len(world)) if entities.is_shared(e)]
    assert 0.08 <= len(shared) / len(world) <= 0.10
    for entity in shared:
        assert entities.titles[entity] == f"{entities.names[entity]} ({entities.label(entity)})"
        assert entities.titles[entity] not in documents[entities.docids[entity]].text
        assert entities.names.count(entities.names[entity]) == 2


def test_titles_do_not_state_a_fact_about_the_page():
    world, _ = world_of(1000, 1)
    for fact in world.facts:
        if not fact.relation.is_attribute:
            name = world.entities.names[fact.object]
            assert not contains(world.entities.names[fact.subject], name)


def test_a_subject_has_one_object_unless_the_relation_has_several():
    world, _ = world_of(1000, 1)
    for relation in world.entities.schema.relations:
        rows = world.facts.of_relation(relation)
        counts: dict[int, int] = {}
        for subject in world.facts.subject[rows].tolist():
            counts[subject] = counts.get(subject, 0) + 1
        low, high = (1, 1) if relation.is_functional else (2, relation.most)
        assert set(counts.values()) <= set(range(low, high + 1)), relation.name


def test_couples_are_disjoint():
    world, _ = world_of(1000, 1)
    rows = world.facts.of_relation(world.entities.schema.relation("spouse"))
    people = world.facts.subject[rows].tolist() + world.facts.object[rows].tolist()
    assert people
    assert len(set(people)) == len(people)


def test_a_capital_lies_in_its_region():
    world, _ = world_of(1000, 1)
    lies_in = world.entities.schema.relation("region")
    rows = world.facts.of_relation(world.entities.schema.relation("capital"))
    assert len(rows)
    for row in rows.tolist():
        fact = world.facts[row]
        assert [f.object for f in world.facts.objects(fact.object, lies_in)] == [fact.subject]


def test_few_entities_are_hubs_and_many_are_leaves():
    world, _ = world_of(1000, 1)
    rows = world.facts.of_relation(world.entities.schema.relation("birthplace"))
    towns = world.facts.object[rows].tolist()
    counts = sorted((towns.count(town) for town in set(towns)), reverse=True)
    assert counts[0] >= 5 * counts[len(counts) // 2]


def test_docids_say_nothing_about_kinds():
    _, documents = world_of(1000, 1)
    persons = [d.docid for d in documents.values() if d.metadata["kind"] == "person"]
    first_half = sum(int(docid[1:], 16) < 500 for docid in persons)
    assert 0.4 <= first_half / len(persons) <= 0.6


def test_document_is_the_page_of_its_docid():
    world, documents = world_of(1000, 1)
    docid = world.entities.docids[17]
    assert world.document(docid) == documents[docid]
    with pytest.raises(KeyError):
        world.document("nowhere")


@pytest.mark.parametrize(("pages", "seed"), [(199, 1), (200, -1)])
def test_impossible_worlds_are_refused(pages, seed):
    with pytest.raises(ConfigError, match="got"):
        generate_world(pages, seed)
