import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs spaniel[dense]")
pytest.importorskip("sentence_transformers", reason="needs spaniel[dense]")

from hypothesis import given  # noqa: E402  # all that follows needs what was just looked for
from hypothesis import strategies as st  # noqa: E402
from tests.index.toy_ranking import (  # noqa: E402
    LETTERS,
    NUMBERS,
    PAIRS,
    QUESTIONS,
    Everything,
    tiny_bert,
)

from spaniel.config import EncoderTrainingConfig  # noqa: E402
from spaniel.corpus.encoder import SentenceEncoder, load_sentence_transformer  # noqa: E402
from spaniel.errors import ConfigError  # noqa: E402
from spaniel.index.hard_negatives import Lesson, mine  # noqa: E402
from spaniel.index.train_encoder import (  # noqa: E402
    SCALE,
    Pair,
    batch_documents,
    ranking_loss,
    train_encoder,
    vectors_of,
)
from spaniel.types import Hit  # noqa: E402


def trained(base, directory, **settings):
    """An encoder that was trained on the toy task and came back from disk."""
    cfg = EncoderTrainingConfig(
        model=base, **{"learning_rate": 1e-2, "num_negatives": 2} | settings
    )
    lessons = mine(QUESTIONS, Everything(), held_out=[], candidates=6)
    model, _ = train_encoder(lessons, Everything(), cfg)
    model.save_pretrained(str(directory), create_model_card=False)
    return SentenceEncoder(str(directory), device="cpu")


def nearest(encoder):
    """How many letters are nearest to their number."""
    letters = encoder.encode_queries(LETTERS)
    numbers = encoder.encode_documents([f"about {number}" for number in NUMBERS])
    found = np.argmax(letters @ numbers.T, axis=1)
    return sum(NUMBERS[i] == PAIRS[letter] for i, letter in zip(found, LETTERS, strict=True))


def test_training_brings_questions_and_targets_together(tmp_path):
    base = tiny_bert(tmp_path / "base", dropout=0.0)
    before = SentenceEncoder(base, device="cpu")
    after = trained(base, tmp_path / "after", epochs=30)
    assert nearest(before) <= 3
    assert nearest(after) == len(LETTERS)
    assert after.fingerprint != before.fingerprint


def test_training_twice_gives_the_same_weights(tmp_path):
    base = tiny_bert(tmp_path / "base")
    prints = [trained(base, tmp_path / str(i), seed=s).fingerprint for i, s in enumerate((1, 1, 2))]
    assert prints[0] == prints[1] != prints[2]


def test_the_limit_of_the_training_is_not_the_models(tmp_path):
    base = tiny_bert(tmp_path / "base")
    cfg = EncoderTrainingConfig(model=base, max_tokens=16)
    lessons = mine(QUESTIONS, Everything(), held_out=[], candidates=6)
    assert train_encoder(lessons, Everything(), cfg)[0].max_seq_length == 64


@pytest.mark.parametrize("names", [{}, {"query": "zeta ", "passage": "six "}])
def test_texts_are_encoded_as_the_encoder_will(tmp_path, names):
    """Prompts of the model included."""
    model = load_sentence_transformer(tiny_bert(tmp_path / "base"), device="cpu").eval()
    model.prompts.update(names)
    texts = ["one two", "alpha"]
    for task, encode in (("query", model.encode_query), ("document", model.encode_document)):
        expected = encode(texts, normalize_embeddings=True)
        with torch.inference_mode():
            assert np.allclose(vectors_of(model, texts, task), expected, atol=1e-5)
    assert np.allclose(model.encode_query("one"), model.encode_document("one")) is not bool(names)


def test_a_model_that_is_not_there_is_refused(tmp_path):
    lessons = mine(QUESTIONS, Everything(), held_out=[], candidates=6)
    cfg = EncoderTrainingConfig(model=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no such model directory"):
        train_encoder(lessons, Everything(), cfg)


DOCIDS = [f"d{i}" for i in range(8)]
lesson_of = st.builds(
    lambda targets, others: Lesson(
        query="q",
        targets=tuple(targets),
        negatives=tuple(
            Hit(docid=d, score=0.0, rank=r) for r, d in enumerate(others, 1) if d not in targets
        ),
        found=(),
    ),
    st.lists(st.sampled_from(DOCIDS), unique=True, min_size=1, max_size=3),
    st.lists(st.sampled_from(DOCIDS), unique=True),
)


@given(st.lists(lesson_of, min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 9))
def test_no_target_of_a_question_stands_against_it(lessons, num_negatives, seed):
    batch = [Pair(lesson=x, target=x.targets[seed % len(x.targets)]) for x in lessons]
    docids, allowed = batch_documents(batch, num_negatives, random.Random(seed))
    assert docids[: len(batch)] == [pair.target for pair in batch]
    for i, pair in enumerate(batch):
        against = [docids[j] for j in range(len(docids)) if allowed[i, j] and j != i]
        assert allowed[i, i]
        assert not set(against) & set(pair.lesson.targets)
        # Everything else in the batch does, once.
        assert sorted(against) == sorted(set(docids) - set(pair.lesson.targets))


def test_the_loss_is_the_cross_entropy_among_the_allowed():
    queries, documents = torch.eye(2), torch.tensor([[1.0, 0], [0, 1], [0.6, 0.8]])
    allowed = torch.tensor([[True, False, True], [True, True, True]])
    first = -np.log(np.exp(SCALE) / (np.exp(SCALE) + np.exp(0.6 * SCALE)))
    second = -np.log(np.exp(SCALE) / (1 + np.exp(SCALE) + np.exp(0.8 * SCALE)))
    loss = ranking_loss(queries, documents, allowed).item()
    assert loss == pytest.approx((first + second) / 2, rel=1e-4)
