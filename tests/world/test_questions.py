import re
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaniel.errors import ConfigError, DataError
from spaniel.types import Question
from spaniel.world import World, generate_world, verify_question
from spaniel.world.pages import plan_page
from spaniel.world.wording import Wording, content_words


@cache
def world_of(pages: int, seed: int) -> World:
    return generate_world(pages, seed)


@cache
def questions_of(pages: int, seed: int) -> tuple[Question, ...]:
    return tuple(world_of(pages, seed).questions(400, seed=1))


KINDS = ("chain", "intersection", "comparison")


class Table:
    """The facts as plain tuples, and queries answered by reading all of them."""

    def __init__(self, world: World) -> None:
        docids = world.entities.docids
        self.rows = [
            (
                docids[f.subject],
                f.relation.name,
                f.object if f.relation.is_attribute else docids[f.object],
                docids[f.page],
            )
            for f in world.facts
        ]

    def answers(self, node) -> tuple[set, set]:
        """All results of a query, and the pages that its single results rest on."""
        match node:
            case ["anchor", docid]:
                return {docid}, set()
            case ["follow", relation, way, arg]:
                starts, pages = self.answers(arg)
                assert len(starts) == 1, "an inner result must be unique"
                found = {}
                for subject, name, value, page in self.rows:
                    if name != relation:
                        continue
                    if subject in starts and (way == "forward" or relation == "spouse"):
                        found[value] = page
                    if value in starts and (way == "inverse" or relation == "spouse"):
                        found[subject] = page
                return set(found), pages | {found[k] for k in found if len(found) == 1}
            case ["both", left, right]:
                both = self.answers(left)[0] & self.answers(right)[0]
                assert len(both) == 1
                pages = self.answers(left[-1])[1] | self.answers(right[-1])[1]
                for _, relation, way, arg in (left, right):
                    (start,), (end,) = self.answers(arg)[0], both
                    ends = (start, end) if way == "forward" else (end, start)
                    pages |= {
                        r[3]
                        for r in self.rows
                        if (r[0], r[1], r[2]) == (ends[0], relation, ends[1])
                    }
                return both, pages
            case ["extreme", relation, way, *sides]:
                values, pages = {}, set()
                for side in sides:
                    (entity,), used = self.answers(side)
                    ((value, page),) = [
                        (r[2], r[3]) for r in self.rows if r[:2] == (entity, relation)
                    ]
                    values[entity] = value
                    pages |= used | {page}
                low, high = sorted(values, key=values.__getitem__)
                assert values[low] < values[high]
                return {high if way == "more" else low}, pages
        raise AssertionError(node)


def texts_of(world: World, query, result) -> str:
    if query[0] == "follow" and not isinstance(result, str):
        relation = world.entities.schema.relation(query[1])
        return world.entities.schema.value_text(relation, result)
    return world.entities.names[world.entity_of[result]]


def test_a_reading_of_all_facts_finds_the_same_single_answer_and_targets():
    world = world_of(1000, 1)
    table = Table(world)
    for question in questions_of(1000, 1)[:120]:
        query = question.metadata["query"]
        results, pages = table.answers(query)
        (result,) = results
        assert texts_of(world, query, result) == question.answers[0]
        assert pages == set(question.targets)


@given(seed=st.integers(0, 10_000), question_seed=st.integers(0, 100))
@settings(max_examples=12, deadline=None)
def test_questions_of_any_small_world_verify(seed, question_seed):
    world = generate_world(200, seed)
    questions = world.questions(40, seed=question_seed, min_hops=1)
    for question in questions:
        verify_question(world, question)
    assert Counter(q.hops for q in questions) == dict.fromkeys(range(1, 6), 8)


def test_targets_are_the_pages_of_the_decomposition():
    world = world_of(1000, 1)
    for question in questions_of(1000, 1):
        steps = question.metadata["decomposition"]
        assert question.targets == tuple(dict.fromkeys(step["docid"] for step in steps))
        assert question.hops == len(question.targets)
        for step in steps:
            page = world.document(step["docid"])
            assert page.title in (step["subject"], step["object"])
            other = step["object"] if page.title == step["subject"] else step["subject"]
            assert re.sub(r" \([^)]*\)$", "", other).lower() in page.text.lower()


def test_no_name_on_the_path_and_no_answer_is_in_the_text():
    world = world_of(1000, 1)
    by_title = {title: entity for entity, title in enumerate(world.entities.titles)}
    for question in questions_of(1000, 1):
        named = set(re.findall(r"'anchor', '(\w+)'", str(question.metadata["query"])))
        words = question.text.lower()
        for step in question.metadata["decomposition"]:
            for title in (step["subject"], step["object"]):
                entity = by_title.get(title)
                if entity is not None and world.entities.docids[entity] not in named:
                    name = re.escape(world.entities.names[entity].lower())
                    assert not re.search(rf"\b{name}(?!\w)", words), question
        for answer in question.answers:
            assert not re.search(rf"(?<!\w){re.escape(answer.lower())}(?!\w)", words), question


def test_hops_are_balanced_and_kinds_present():
    questions = questions_of(1000, 1)
    assert Counter(q.hops for q in questions) == {2: 100, 3: 100, 4: 100, 5: 100}
    kinds = Counter((q.hops, q.kind) for q in questions)
    assert all(kinds[hops, kind] >= 8 for hops in (2, 3, 4, 5) for kind in KINDS)


@pytest.mark.parametrize("kinds", [("chain",), ("intersection", "comparison")])
def test_kinds_can_be_chosen(kinds):
    questions = world_of(300, 2).questions(60, seed=1, min_hops=2, max_hops=3, kinds=kinds)
    assert {q.kind for q in questions} == set(kinds)


def test_a_kind_that_hops_do_not_allow_gives_no_question():
    with pytest.raises(ConfigError, match="yielded 0 different questions of 1 to 1 hops"):
        world_of(300, 2).questions(5, seed=1, min_hops=1, max_hops=1, kinds=("comparison",))


def test_no_two_questions_rest_on_the_same_facts():
    questions = questions_of(1000, 1)
    facts = [
        frozenset(tuple(step.values()) for step in q.metadata["decomposition"]) for q in questions
    ]
    assert len(set(facts)) == len({q.text for q in questions}) == len({q.qid for q in questions})
    assert len(set(facts)) == len(questions) == 400


def test_starts_are_spread_over_the_world():
    starts = Counter(
        docid
        for q in questions_of(1000, 1)
        for docid in set(re.findall(r"'anchor', '(\w+)'", str(q.metadata["query"])))
    )
    assert max(starts.values()) <= 10
    assert len(starts) >= 300


def test_texts_are_finished_sentences():
    for question in questions_of(1000, 1):
        assert re.match(r"[A-Z0-9].*[.?]$", question.text), question.text
        assert "{" not in question.text
        assert "  " not in question.text


def test_question_seeds_differ_and_repeat():
    world = world_of(1000, 1)
    first = world.questions(50, seed=1)
    assert world.questions(50, seed=1) == first
    assert not {q.text for q in first} & {q.text for q in world.questions(50, seed=2)}


def test_one_hop_questions_have_one_target():
    questions = world_of(1000, 1).questions(60, seed=5, min_hops=1, max_hops=1)
    assert {q.hops for q in questions} == {1}
    assert {len(q.targets) for q in questions} == {1}


def test_about_half_of_the_relations_are_asked_in_other_words(monkeypatch):
    far = []
    choose = Wording._choose

    def watched(self, templates, fact):
        template = choose(self, templates, fact)
        statements, _ = plan_page(self.facts, fact.page, self.seed)
        number = next(s.template for s in statements if fact in s.facts)
        far.append(not content_words(template) & content_words(fact.relation.page[number]))
        return template

    monkeypatch.setattr(Wording, "_choose", watched)
    world_of(1000, 1).questions(400, seed=9)
    assert 0.4 <= sum(far) / len(far) <= 0.6


def test_content_words_drop_slots_endings_and_common_words():
    assert content_words("the person who founded {x}") == {"person", "found"}
    assert content_words("{p} was the founder of {o}") == {"found"}


@pytest.mark.parametrize("hops", [(0, 2), (3, 2), (2, 6)])
def test_impossible_hops_are_refused(hops):
    with pytest.raises(ConfigError, match="min_hops"):
        world_of(200, 1).questions(5, seed=1, min_hops=hops[0], max_hops=hops[1])


def test_more_questions_than_a_world_has_are_refused(monkeypatch):
    monkeypatch.setattr("spaniel.world.questions.PATIENCE", 10)
    with pytest.raises(ConfigError, match="ask for fewer"):
        world_of(200, 1).questions(3000, seed=1, min_hops=1, max_hops=1)


def spoilt(question: Question, what: str) -> Question:
    match what:
        case "targets":
            return replace(question, targets=question.targets[1:])
        case "hops":
            return replace(question, hops=question.hops + 1)
        case "answers":
            return replace(question, answers=("nobody",))
        case "hidden entity":
            return replace(question, text=f"{question.text} {question.answers[0]}")
        case "must name":
            return replace(question, text="Who was it?")
    query = ["follow", "no_such_relation", "forward", question.metadata["query"]]
    return replace(question, metadata=question.metadata | {"query": query})


@pytest.mark.parametrize(
    "what", ["targets", "hops", "answers", "hidden entity", "must name", "does not have"]
)
def test_a_wrong_label_is_noticed(what):
    world, question = world_of(1000, 1), questions_of(1000, 1)[0]
    with pytest.raises(DataError, match=what):
        verify_question(world, spoilt(question, what))


def test_an_ambiguous_query_is_noticed():
    world = world_of(1000, 1)
    rows = world.facts.of_relation(world.entities.schema.relation("birthplace"))
    towns = world.facts.object[rows].tolist()
    hub = max(set(towns), key=towns.count)
    query = ["follow", "birthplace", "inverse", ["anchor", world.entities.docids[hub]]]
    question = Question(qid="q", text="?", metadata={"query": query, "decomposition": []})
    with pytest.raises(DataError, match="exactly one result"):
        verify_question(world, question)
