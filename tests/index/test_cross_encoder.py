import json
import math
import threading

import pytest

torch = pytest.importorskip("torch", reason="needs spaniel[dense]")
pytest.importorskip("sentence_transformers", reason="needs spaniel[dense]")

from tests.index.conftest import document  # noqa: E402  # behind the check for extras
from tests.index.toy_ranking import (  # noqa: E402
    DOCUMENTS,
    LETTERS,
    NUMBERS,
    QUESTIONS,
    Everything,
    first_places,
    tiny_bert,
)

from spaniel.config import RerankerTrainingConfig  # noqa: E402
from spaniel.errors import ConfigError, ToolError, TrainingError  # noqa: E402
from spaniel.index.cross_encoder import (  # noqa: E402
    CrossEncoderReranker,
    save_cross_encoder,
    start_cross_encoder,
)
from spaniel.index.hard_negatives import mine  # noqa: E402
from spaniel.index.rerank import RerankedEngine  # noqa: E402
from spaniel.index.token_match import TokenMatch  # noqa: E402
from spaniel.index.train_cross_encoder import list_loss, train_cross_encoder  # noqa: E402
from spaniel.types import Hit  # noqa: E402


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A BERT without a head for scores."""
    return tiny_bert(tmp_path_factory.mktemp("bert") / "encoder")


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    """A BERT with one, as cross-encoders of the hub are."""
    return tiny_bert(tmp_path_factory.mktemp("bert") / "ranker", num_labels=1)


def hits_of(documents):
    return [Hit(docid=d.docid, score=0.5, rank=r) for r, d in enumerate(documents, start=1)]


def trained(base, directory, **settings):
    """A reranker that was trained on the toy task and came back from disk."""
    cfg = RerankerTrainingConfig(
        model=base, **{"learning_rate": 3e-3, "num_negatives": 5, "batch_size": 6} | settings
    )
    lessons = mine(QUESTIONS, Everything(), held_out=[], candidates=6)
    model, prior, _ = train_cross_encoder(lessons, Everything(), cfg)
    directory.mkdir()
    save_cross_encoder(model, prior, directory)
    return CrossEncoderReranker(str(directory), device="cpu")


# --- scoring --------------------------------------------------------------------------------


def test_scores_are_the_librarys_logits(ranker):
    from sentence_transformers import CrossEncoder

    expected = CrossEncoder(ranker, device="cpu", local_files_only=True).predict(
        [("alpha", document_.text) for document_ in DOCUMENTS], activation_fn=torch.nn.Identity()
    )
    scores = CrossEncoderReranker(ranker, device="cpu").score(
        "alpha", hits_of(DOCUMENTS), DOCUMENTS
    )
    assert scores == pytest.approx(expected.tolist(), abs=1e-4)
    assert len(set(scores)) > 1


def test_equal_texts_score_alike_and_the_order_of_hits_changes_nothing(ranker):
    reranker = CrossEncoderReranker(ranker, device="cpu", batch_size=3)
    docs = [document(str(i), " ".join(["about", *NUMBERS[: i % 5 + 1]])) for i in range(20)]
    scores = reranker.score("alpha beta", hits_of(docs), docs)
    assert reranker.score("alpha beta", hits_of(docs)[::-1], docs[::-1]) == scores[::-1]
    assert scores[:5] == scores[5:10]


def test_quotes_and_site_of_a_query_are_not_read(ranker):
    reranker = CrossEncoderReranker(ranker, device="cpu")
    scores = reranker.score("beta alpha", hits_of(DOCUMENTS), DOCUMENTS)
    assert reranker.score('beta site:a.org "alpha"', hits_of(DOCUMENTS), DOCUMENTS) == scores


@pytest.mark.parametrize("query", ["", "site:a.org", '""'])
def test_without_a_word_the_engines_order_stays(ranker, query):
    scores = CrossEncoderReranker(ranker, device="cpu").score(query, hits_of(DOCUMENTS), DOCUMENTS)
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(DOCUMENTS)


@pytest.mark.parametrize("query", ["???", "alpha " * 500, "[SEP]", "\x00"])
def test_any_query_is_scored(encoder, tmp_path, query):
    save_cross_encoder(*start_cross_encoder(encoder, device="cpu"), tmp_path)
    docs = [document("a", ""), document("b", "one " * 500)]
    scores = CrossEncoderReranker(str(tmp_path), device="cpu").score(query, hits_of(docs), docs)
    assert all(map(math.isfinite, scores))


def test_threads_get_the_scores_of_one_caller(ranker):
    reranker = CrossEncoderReranker(ranker, device="cpu")
    alone = {x: reranker.score(x, hits_of(DOCUMENTS), DOCUMENTS) for x in LETTERS}
    wrong = []

    def ask(letter):
        if reranker.score(letter, hits_of(DOCUMENTS), DOCUMENTS) != alone[letter]:
            wrong.append(letter)

    threads = [threading.Thread(target=ask, args=(x,)) for x in LETTERS * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_model_that_breaks_is_an_error_of_the_tool_and_not_the_old_order(ranker, monkeypatch):
    reranker = CrossEncoderReranker(ranker, device="cpu")
    monkeypatch.setattr(reranker.model, "predict", lambda *_, **__: 1 / 0)
    with pytest.raises(ToolError, match="rerank failed: ZeroDivisionError"):
        RerankedEngine(Everything(), reranker).search("alpha", 3)


# --- loading ----------------------------------------------------------------------------------


def test_a_model_without_a_head_for_scores_is_refused(encoder):
    with pytest.raises(ConfigError, match="no trained head"):
        CrossEncoderReranker(encoder)


def test_a_model_with_several_outputs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="3 outputs; a reranker needs one"):
        CrossEncoderReranker(tiny_bert(tmp_path / "three", num_labels=3))


def test_a_directory_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot load the reranker"):
        CrossEncoderReranker(str(tmp_path))


def test_the_fingerprint_follows_weights_and_limit_only(ranker, tmp_path):
    again = tiny_bert(tmp_path / "again", num_labels=1)
    (tmp_path / "again" / "manifest.json").write_text('{"commit": "x"}')
    prints = [
        CrossEncoderReranker(path, max_tokens=n, device="cpu").fingerprint
        for path, n in ((ranker, 32), (again, 32), (ranker, 16))
    ]
    assert prints[0] == prints[1] != prints[2]


# --- the head that compares tokens ------------------------------------------------------------


def test_token_match_is_the_mean_of_the_best_similarities():
    head = TokenMatch(2, [0, 1, 2])
    # [CLS] q q [SEP] d d [SEP] [PAD]; border tokens point where they would win.
    vectors = [[1, 0], [3, 0], [0, 2], [1, 0], [0.6, 0.8], [0, 1], [1, 0], [1, 0]]
    features = {
        "token_embeddings": torch.tensor([vectors], dtype=torch.float32),
        "input_ids": torch.tensor([[1, 7, 8, 2, 9, 10, 2, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0]]),
    }
    # (1, 0) finds .6 and (0, 1) finds 1: their mean .8, times 20.
    assert head(features)["scores"].tolist() == [[pytest.approx(16.0, abs=1e-4)]]
    # A query token that counts e^3 times as much as the other.
    head.importance.data = torch.tensor([3.0, 0.0])
    weight = math.exp(3) / (1 + math.exp(3))
    expected = 20 * (0.6 * weight + 1.0 * (1 - weight))
    assert head(features)["scores"].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("ids", [[0, 7, 2, 9, 9, 2], [0, 7, 2, 2, 9, 9], [7, 1, 9, 9, 1, 1]])
def test_sides_are_told_from_the_tokens_between(ids):
    head = TokenMatch(2, [0, 1, 2])
    query, rest = head.sides(torch.tensor([ids]), torch.ones(1, 6))
    assert query[0].tolist() == [token == 7 for token in ids]
    assert rest[0].tolist() == [token == 9 for token in ids]


def test_an_encoder_starts_with_the_comparison_and_the_engines_rank(encoder, tmp_path):
    model, prior = start_cross_encoder(encoder, device="cpu")
    assert prior > 0
    save_cross_encoder(model, prior, tmp_path)
    reranker = CrossEncoderReranker(str(tmp_path), device="cpu")
    copies = [document(str(i), "about one") for i in range(3)]
    scores = reranker.score("alpha", hits_of(copies), copies)
    assert scores[0] - scores[1] == pytest.approx(prior * math.log(2), abs=1e-4)
    assert scores[0] - scores[2] == pytest.approx(prior * math.log(3), abs=1e-4)


# --- training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_labels", [None, 1])
def test_training_moves_the_targets_up(num_labels, tmp_path):
    base = tiny_bert(tmp_path / "base", num_labels=num_labels, dropout=0.0)
    start, prior = start_cross_encoder(base, device="cpu")
    (tmp_path / "start").mkdir()
    save_cross_encoder(start, prior, tmp_path / "start")
    before = CrossEncoderReranker(str(tmp_path / "start"), device="cpu")
    after = trained(base, tmp_path / "after", epochs=25, learning_rate=1e-2)
    assert first_places(RerankedEngine(Everything(), before)) <= 3
    assert first_places(RerankedEngine(Everything(), after)) == len(LETTERS)


def test_training_twice_gives_the_same_weights(encoder, tmp_path):
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    prints = [
        trained(encoder, tmp_path / str(i), seed=s).fingerprint for i, s in enumerate((1, 1, 2))
    ]
    assert prints[0] == prints[1] != prints[2]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_trained_reranker_can_be_trained_on(encoder, tmp_path):
    first = trained(encoder, tmp_path / "first")
    second = trained(str(tmp_path / "first"), tmp_path / "second")
    head = json.loads((tmp_path / "second/scoring.json").read_text())["head"]
    assert (head, second.fingerprint != first.fingerprint) == ("token_match", True)


def test_a_loss_that_is_not_finite_stops_the_training(ranker, tmp_path):
    with pytest.raises(TrainingError, match="lower its learning_rate"):
        trained(ranker, tmp_path / "x", learning_rate=1e30, epochs=3)


def test_minutes_end_the_training_early(ranker):
    lessons = mine(QUESTIONS, Everything(), held_out=[], candidates=6)
    cfg = RerankerTrainingConfig(model=ranker, epochs=1000, minutes=1e-4, num_negatives=1)
    assert train_cross_encoder(lessons, Everything(), cfg)[2] < 1000


def test_an_engine_that_finds_no_target_cannot_be_learned_from(ranker):
    lessons = mine(QUESTIONS[:1], Everything(), held_out=[], candidates=2)
    assert lessons[0].found == ()
    with pytest.raises(ConfigError, match="no training question has a target among"):
        train_cross_encoder(lessons, Everything(), RerankerTrainingConfig(model=ranker))


def test_the_loss_is_the_cross_entropy_of_each_lists_first():
    scores = torch.tensor([2.0, 0.0, 1.0, 1.0, 1.0])
    expected = (math.log(1 + math.exp(-2)) + math.log(3)) / 2
    assert list_loss(scores, [2, 3]).item() == pytest.approx(expected, abs=1e-6)
