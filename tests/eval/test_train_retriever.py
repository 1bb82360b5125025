"""The two commands, from a recipe to a model that the policy's search uses."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs spaniel[dense]")
pytest.importorskip("sentence_transformers", reason="needs spaniel[dense]")

from tests.index.conftest import document
from tests.index.toy_ranking import DOCUMENTS, LETTERS, PAIRS, Everything, tiny_bert
from typer.testing import CliRunner

from spaniel.cli import app
from spaniel.config import load_recipe, parse_recipe
from spaniel.errors import ArtifactError, ConfigError, DataError
from spaniel.eval import train_retriever
from spaniel.eval.evaluate import Evaluation, evaluate
from spaniel.eval.train_retriever import compare, encoded_lists
from spaniel.index import late_interaction
from spaniel.index.rerank import RerankedEngine
from spaniel.index.trained_on import refuse_if_trained_on
from spaniel.run import Run
from spaniel.types import Question
from spaniel.workbench import Workbench


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A run with corpus, index and split, and a recipe whose trainings start from tiny models."""
    folder = tmp_path_factory.mktemp("run")
    rows = [{"docid": d.docid, "title": d.docid, "text": d.text} for d in DOCUMENTS]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    asked = [{"qid": x, "text": f"about {x}", "targets": [PAIRS[x]]} for x in LETTERS]
    (folder / "questions.jsonl").write_text("".join(json.dumps(r) + "\n" for r in asked))
    base = tiny_bert(folder / "base")
    recipe = folder / "recipe.toml"
    recipe.write_text(
        f'''name = "t"
run_dir = "{folder}/run"
[corpus.source]
type = "jsonl"
corpus = "{folder}/corpus.jsonl"
questions = "{folder}/questions.jsonl"
[questions]
test_frac = 0.4
[index]
encoder = "{base}"
[index.train_reranker]
model = "{base}"
[index.train_encoder]
model = "{base}"
candidates = 6
'''
    )
    for command in (["index", "build"], ["questions", "split"]):
        assert CliRunner().invoke(app, [*command, str(recipe)]).exit_code == 0
    return recipe


def command(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def bench_of(recipe, **overrides):
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    return Workbench(Run(load_recipe(recipe, dotted)))


def manifest_of(directory):
    return json.loads((directory / "manifest.json").read_text())


@pytest.mark.parametrize("kind", ["reranker", "encoder"])
def test_a_training_says_what_it_gained_and_what_it_was_made_of(prepared, kind):
    output = command("index", f"train-{kind}", prepared)
    bench = bench_of(prepared)
    directory = bench.run.path("index", kind)
    manifest = manifest_of(directory)
    n = len(bench.test_questions)
    assert f"nDCG@10 on {n} held-out questions" in output
    assert f'index.{kind.replace("reranker", "rerank")} = "{directory}"' in output
    assert manifest["settings"] == (
        getattr(bench.recipe.index, f"train_{kind}").model_dump(mode="json")
    )
    assert manifest["index"] == bench.first_stage.fingerprint
    assert manifest["num_questions"] == len(bench.train_questions) == len(LETTERS) - n
    assert [gain["test"]["n"] for gain in manifest["gains"]] == [n] * len(manifest["gains"])
    assert all(0 <= gain["after"] <= 1 for gain in manifest["gains"])


@pytest.mark.parametrize("kind", ["reranker", "encoder"])
def test_held_out_questions_are_never_learned_from(prepared, kind, monkeypatch):
    bench = bench_of(prepared)
    learned = []
    mine = train_retriever.mine

    def spy(questions, engine, **rest):
        learned.extend(questions)
        return mine(questions, engine, **rest)

    monkeypatch.setattr(train_retriever, "mine", spy)
    trained = getattr(train_retriever, f"train_{kind}")(bench)
    assert {q.qid for q in learned} == set(bench.split.train)
    path = str(trained.directory)
    refuse_if_trained_on(path, bench.test_questions)
    with pytest.raises(ArtifactError, match="was trained on"):
        refuse_if_trained_on(path, bench.train_questions)
    # Nor does a training go on from a model that knows them.
    monkeypatch.setattr(Workbench, "test_questions", bench.train_questions)
    monkeypatch.setattr(Workbench, "train_questions", [])
    setting = {f"index__train_{kind}__model": path}
    with pytest.raises(ArtifactError, match="was trained on"):
        getattr(train_retriever, f"train_{kind}")(bench_of(prepared, **setting))


def test_the_policys_search_uses_the_reranker(prepared):
    command("index", "train-reranker", prepared)
    path = bench_of(prepared).run.path("index", "reranker")
    bench = bench_of(prepared, index__rerank=str(path), index__rerank_candidates="4")
    found = bench.first_stage.search("about alpha", 4)
    expected = RerankedEngine(bench.first_stage, bench.reranker, 4).search("about alpha", 3)
    assert bench.engine.search("about alpha", 3) == expected
    assert {hit.docid for hit in expected} <= {hit.docid for hit in found}
    assert bench.environment.engine is bench.engine
    output = command(
        "index", "search", prepared, "about alpha", "--k", "1", "--index.rerank", path,
        "--index.rerank_candidates", "4",
    )  # fmt: skip
    assert f"[{expected[0].docid}]" in output
    assert bench.engine.fingerprint != bench_of(prepared).engine.fingerprint


def test_the_hybrid_engine_and_the_table_are_reranked_too(prepared):
    command("index", "train-reranker", prepared)
    path = str(bench_of(prepared).run.path("index", "reranker"))
    bench = bench_of(prepared, index__engine="hybrid", index__rerank=path)
    expected = RerankedEngine(bench.hybrid, bench.reranker).search("about alpha", 3)
    assert bench.engine.search("about alpha", 3) == expected
    evaluation = Evaluation(bench)
    evaluation.classical()
    engines = {r.system: r.made_by["engine"] for r in evaluation.results}
    assert engines["search+reranker"] == bench.engine.fingerprint
    assert engines["vector+reranker"] == RerankedEngine(bench.dense, bench.reranker).fingerprint
    assert evaluation.not_run == {}


def test_late_interaction_orders_the_vectors_hits_for_a_policy(prepared, monkeypatch):
    base = bench_of(prepared).recipe.index.encoder
    monkeypatch.setattr(late_interaction.LateInteraction.__init__, "__defaults__", (base,))
    bench = bench_of(prepared, index__engine="dense", index__rerank="late-interaction")
    reranker = late_interaction.LateInteraction(base, max_tokens=256)
    expected = RerankedEngine(bench.dense, reranker).search("about alpha", 3)
    assert bench.engine.search("about alpha", 3) == expected
    with pytest.raises(ConfigError, match=r"needs index\.engine = dense, got lexical"):
        _ = bench_of(prepared, index__rerank="late-interaction").engine


def test_a_model_that_knows_the_held_out_questions_is_not_evaluated(prepared, monkeypatch):
    path = str(train_retriever.train_reranker(bench_of(prepared)).directory)
    bench = bench_of(prepared, index__rerank=path)
    monkeypatch.setattr(Workbench, "test_questions", bench.train_questions)
    with pytest.raises(ArtifactError, match="was trained on"):
        evaluate(bench_of(prepared, index__rerank=path))


def test_the_vectors_are_made_anew_by_a_trained_encoder(prepared):
    settings = {"index__engine": "dense"}
    before = bench_of(prepared, **settings)
    old = before.engine.search("about alpha", 6)
    command("index", "train-encoder", prepared, "--index.train_encoder.learning_rate", "0.01")
    path = before.run.path("index", "encoder")
    after = bench_of(prepared, **settings, index__encoder=str(path))
    new = after.engine.search("about alpha", 6)
    assert [hit.score for hit in new] != [hit.score for hit in old]
    assert after.engine.fingerprint != before.engine.fingerprint


def test_what_stood_before_stays_when_a_training_is_stopped(prepared, monkeypatch):
    command("index", "train-reranker", prepared)
    directory = bench_of(prepared).run.path("index", "reranker")
    old = {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train_retriever, "compare", stop)
    with pytest.raises(KeyboardInterrupt):
        train_retriever.train_reranker(bench_of(prepared, index__train_reranker__seed="9"))
    assert {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()} == old
    assert not list(directory.parent.glob(".*partial"))


def test_nothing_is_trained_that_cannot_be_measured(prepared, monkeypatch):
    unlabelled = [replace(q, targets=()) for q in bench_of(prepared).test_questions]
    monkeypatch.setattr(Workbench, "test_questions", unlabelled)
    with pytest.raises(DataError, match="no held-out questions with targets"):
        train_retriever.train_reranker(bench_of(prepared))


def test_how_a_retriever_is_trained_is_no_setting_of_the_index(prepared):
    output = command("index", "build", prepared, "--index.train_encoder.epochs", "9")
    assert "up to date" in output
    with pytest.raises(ArtifactError, match=r"rerank was None, is 'x/y'"):
        command("index", "build", prepared, "--index.rerank", "x/y")


def test_a_reranker_that_is_not_set_or_not_there_is_a_clear_error(prepared):
    with pytest.raises(ConfigError, match=r"set index\.rerank"):
        _ = bench_of(prepared).reranker
    with pytest.raises(ConfigError, match="no such model directory"):
        _ = bench_of(prepared, index__rerank="./nowhere").engine


@pytest.mark.parametrize(
    "setting", ["epochs = 0", "num_negatives = 0", "learning_rate = 0", "minutes = 0", "lr = 1"]
)
def test_settings_out_of_range_are_refused(setting):
    name, _, value = setting.partition(" = ")
    for section in ("train_reranker", "train_encoder"):
        data = {"name": "x", "index": {section: {name: int(value)}}}
        with pytest.raises(ConfigError, match=f"index.{section}.{name}"):
            parse_recipe(data, where="recipe")


# --- measuring --------------------------------------------------------------------------------


def test_gains_are_means_over_the_questions():
    questions = [Question(qid=q, text=q, targets=("t", "u")) for q in "ab"]
    before = {"a": ["t", "u"], "b": ["x", "y"]}
    after = {"a": ["t", "x"], "b": ["u", "t"]}
    ndcg, recall = compare(questions, before, after, ("nDCG@1", "R@2"))
    assert (ndcg.before, ndcg.after) == (0.5, 1.0)
    assert (recall.before, recall.after) == (0.5, 0.75)
    assert (recall.test.difference, recall.test.n) == (0.25, 2)
    assert "no sure gain" in recall.line()


class Lengths:
    """The vector of a text is its length."""

    def encode_queries(self, texts):
        return np.ones((len(texts), 1), dtype=np.float32)

    def encode_documents(self, texts):
        return np.array([[float(len(text))] for text in texts], dtype=np.float32)


def test_an_encoder_alone_ranks_by_similarity_and_ties_by_docid():
    documents = [document("c", "xx"), document("a", "xx"), document("b", "xxx")]
    (question,) = [Question(qid="q", text="?", targets=("a",))]
    lists = encoded_lists(Lengths(), [question], ["a", "b", "c"], Everything(documents))
    assert lists == {"q": ["b", "a", "c"]}


def test_encoders_are_compared_on_targets_hits_and_others_by_the_seed(prepared):
    limit = {"index__train_encoder__eval_documents": "3", "index__train_encoder__candidates": "2"}
    bench = bench_of(prepared, **limit)
    pool = train_retriever._pool(bench, bench.test_questions[:1], bench.first_stage)
    (target,) = bench.test_questions[0].targets
    found = {hit.docid for hit in bench.first_stage.search(bench.test_questions[0].text, 2)}
    assert {target, *found} <= set(pool)
    assert len(pool) == max(3, len({target, *found}))
    assert pool == train_retriever._pool(bench, bench.test_questions[:1], bench.first_stage)
    whole = bench_of(prepared)
    assert len(train_retriever._pool(whole, whole.test_questions, whole.first_stage)) == 6
