"""Fitting the fusion."""

import pytest

from spaniel.config import IndexConfig
from spaniel.errors import DataError
from spaniel.eval.metrics import score_list
from spaniel.eval.tune import Fusion, _ndcg, tune_fusion
from spaniel.index.build import build_index, open_index
from spaniel.types import Document, Question
from spaniel.world import generate_world


@pytest.fixture(scope="module")
def world():
    return generate_world(200, 4)


@pytest.fixture(scope="module")
def directory(world, tmp_path_factory):
    directory = tmp_path_factory.mktemp("tune") / "index"
    build_index(world.documents(), directory, IndexConfig())
    return directory


def test_the_fast_scores_are_those_of_the_engine(world, directory):
    grid = [
        Fusion(rank_constant=c, weight_document=1.0, weight_passage=p, weight_title=t)
        for c, p, t in [(5.0, 0.75, 0.75), (1.0, 0.0, 2.0), (60.0, 4.0, 0.25)]
    ]
    engine = open_index(directory, IndexConfig())
    for question in world.questions(30, seed=2):
        # The engine reads quotes and site: as its language; these questions hold neither.
        fast = _ndcg(engine, question, grid, 10)
        for fusion, value in zip(grid, fast, strict=True):
            cfg = IndexConfig(**{n: getattr(fusion, n) for n in Fusion.__dataclass_fields__})
            hits = open_index(directory, cfg, snippet_words=0).search(question.text, 10)
            slow = score_list([h.docid for h in hits], question.targets).ndcg
            assert value == pytest.approx(slow)


def questions_of(documents, count):
    return [
        Question(qid=f"q{i}", text=f"{d.title} harbour", targets=(d.docid,), hops=1)
        for i, d in enumerate(documents[:count])
    ]


def test_titles_that_answer_are_found_out(tmp_path):
    # The text of each document is about the next one's title: only the title view is right.
    heads, tails = ("brin", "tolm", "vask", "quar", "zeld"), ("oth", "ary", "und")
    names = [f"{a}{b}" for a in heads for b in tails]
    documents = [
        Document(docid=f"d{i:02}", title=name, text=f"{names[(i + 1) % len(names)]} harbour " * 4)
        for i, name in enumerate(names)
    ]
    cfg = IndexConfig(weight_title=0.0)
    build_index(documents, tmp_path / "index", cfg)
    questions = questions_of(documents, 15)
    engine = open_index(tmp_path / "index", cfg)
    tuning = tune_fusion(engine, questions[:8], questions[8:], cfg, k=1)
    assert tuning.before.weight_title == 0.0
    assert tuning.after.weight_title > 0.0
    assert tuning.checked_after > tuning.checked_before
    assert tuning.views_alone["title"] == 1.0
    assert any(line.startswith("weight_title = ") for line in tuning.lines())


def test_settings_that_nothing_beats_stay(world, directory):
    engine = open_index(directory, IndexConfig())
    impossible = [Question(qid="x", text="zzzz", targets=("none",), hops=1)]
    tuning = tune_fusion(engine, impossible, impossible, IndexConfig())
    assert tuning.after == tuning.before
    assert "no sure gain" in "\n".join(tuning.lines())


def test_both_sets_are_needed(directory):
    engine = open_index(directory, IndexConfig())
    with pytest.raises(DataError, match="got 0, 0"):
        tune_fusion(engine, [], [], IndexConfig())
