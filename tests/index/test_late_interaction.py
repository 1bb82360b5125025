import math

import pytest

torch = pytest.importorskip("torch", reason="needs spaniel[dense]")
transformers = pytest.importorskip("transformers", reason="needs spaniel[dense]")

from tests.index.conftest import document  # noqa: E402

from spaniel.errors import ConfigError  # noqa: E402
from spaniel.index.late_interaction import (  # noqa: E402
    WEIGHT,
    LateInteraction,
    Tokens,
    matches_of,
    rarity,
    train_reranker,
)
from spaniel.index.rerank import RerankedEngine  # noqa: E402
from spaniel.types import Hit, Question  # noqa: E402

LETTERS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
NUMBERS = ["one", "two", "three", "four", "five", "six"]
PAIRS = dict(zip(LETTERS, NUMBERS, strict=True))


@pytest.fixture
def tiny(tmp_path):
    """A random two-layer BERT that knows the words of the toy task."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *NUMBERS, "about"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "tiny")
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "tiny")
    return str(tmp_path / "tiny")


class Everything:
    """Finds all documents, alike and in docid order."""

    fingerprint = "everything"

    def __init__(self, documents):
        self.documents = {d.docid: d for d in documents}

    def search(self, query, k):
        docids = sorted(self.documents)[:k]
        return [Hit(docid=d, score=0.5, rank=r) for r, d in enumerate(docids, start=1)]

    def search_batch(self, queries, k):
        return [self.search(query, k) for query in queries]

    def read(self, docid):
        return self.documents[docid]

    def read_batch(self, docids):
        return [self.read(docid) for docid in docids]


def first_places(reranker, engine):
    """How many letters find their number first."""
    reranked = RerankedEngine(engine, reranker)
    return sum(reranked.search(letter, 1)[0].docid == PAIRS[letter] for letter in LETTERS)


def test_training_teaches_what_belongs_together(tiny, tmp_path):
    engine = Everything([document(number, f"about {number}") for number in NUMBERS])
    questions = [Question(qid=x, text=x, targets=(PAIRS[x],)) for x in LETTERS]
    before = first_places(LateInteraction(tiny), engine)
    trained = train_reranker(
        questions,
        engine,
        tmp_path / "trained",
        base=tiny,
        num_negatives=5,
        learning_rate=0.01,
        epochs=30,
    )
    assert before < 4
    assert first_places(trained, engine) == len(LETTERS)
    # What was saved is what was returned.
    again = LateInteraction(str(tmp_path / "trained"))
    assert again.fingerprint == trained.fingerprint != LateInteraction(tiny).fingerprint
    assert first_places(again, engine) == len(LETTERS)


def test_training_twice_gives_the_same_weights(tiny, tmp_path):
    engine = Everything([document(number, f"about {number}") for number in NUMBERS])
    questions = [Question(qid=x, text=x, targets=(PAIRS[x],)) for x in LETTERS]
    prints = {
        train_reranker(questions, engine, tmp_path / name, base=tiny).fingerprint for name in "ab"
    }
    assert len(prints) == 1


def test_questions_that_teach_nothing_are_refused(tiny, tmp_path):
    engine = Everything([document("one", "one")])
    questions = [
        Question(qid="all", text="alpha", targets=("one",)),
        Question(qid="none", text="alpha", targets=("elsewhere",)),
    ]
    with pytest.raises(ConfigError, match="no training question"):
        train_reranker(questions, engine, tmp_path / "x", base=tiny)
    assert not (tmp_path / "x").exists()


def test_match_is_the_weighted_mean_of_the_best_similarities():
    def tokens(vectors, mask):
        return Tokens(
            vectors_BTD=torch.tensor(vectors),
            mask_BT=torch.tensor(mask),
            ids=[[7, 8][: len(row) - 2] for row in mask],
        )

    # The query's two inner tokens are (1, 0) and (0, 1), of weights 1 and 3.
    query = tokens([[[9.0, 9], [1, 0], [0, 1], [9, 9]]], [[True] * 4])
    documents = tokens(
        [[[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]], [[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]]],
        [[True, True, False], [True, True, True]],
    )
    # First document: (1, 0) finds .6 (padding would give 1), (0, 1) finds 1: (.6 + 3) / 4.
    matches = matches_of(query, 0, documents, torch.tensor([1.0, 3.0]))
    assert matches.tolist() == pytest.approx([0.9, 1.0])


def test_rarity_counts_the_candidates_that_hold_a_token():
    weights = rarity([5, 6], [[5, 5], [5], [7]])
    assert weights.tolist() == pytest.approx([math.log(1 + 3 / 3), math.log(1 + 3 / 1)])


def test_scores_do_not_depend_on_the_order_or_number_of_texts_of_other_lengths(tiny):
    reranker = LateInteraction(tiny)
    docs = [document(str(i), " ".join(["about", *NUMBERS[: i % 5 + 1]])) for i in range(40)]
    hits = [Hit(docid=d.docid, score=0.1, rank=1) for d in docs]
    scores = reranker.score("alpha beta", hits, docs)
    turned = reranker.score("alpha beta", hits[::-1], docs[::-1])
    assert turned[::-1] == pytest.approx(scores, abs=1e-5)
    assert scores[0] == pytest.approx(scores[5], abs=1e-5)


def test_the_hits_own_score_counts_beside_the_match(tiny):
    low, high = Hit(docid="a", score=0.0, rank=1), Hit(docid="a", score=0.5, rank=1)
    document_ = document("a", "one")
    scores = LateInteraction(tiny).score("alpha", [low, high], [document_, document_])
    assert scores[1] - scores[0] == pytest.approx(0.5 / (1 + WEIGHT), abs=1e-6)


@pytest.mark.parametrize("query", ["", "???", "alpha " * 500])
def test_any_query_is_scored(tiny, query):
    hit = Hit(docid="a", score=0.5, rank=1)
    (score,) = LateInteraction(tiny).score(query, [hit], [document("a", "")])
    assert -1 <= score <= 1


def test_a_directory_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot load the reranker"):
        LateInteraction(str(tmp_path))
