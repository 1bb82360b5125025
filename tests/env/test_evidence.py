"""Evidence from pages."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.endpoint_server import Server, answer

from spaniel.config import EndpointConfig, EvidenceConfig
from spaniel.env.evidence import (
    LlmExtractor,
    SentenceExtractor,
    make_extractor,
    sentence_spans,
)
from spaniel.errors import ToolError
from spaniel.types import Document

PAGE = Document(
    docid="d",
    title="Harrowby",
    text=(
        "Harrowby is a town on the river Sill. It has two mills. The mills were built by Ilse "
        "Brandt in 1820. A market is held on Fridays.\n\nNobody knows who founded the town."
    ),
)


def test_sentences_that_share_rare_words_come_in_text_order():
    extractor = SentenceExtractor("english")
    found = extractor.extract("Who built the mill?", PAGE, 100)
    text = "It has two mills. The mills were built by Ilse Brandt in 1820."
    assert found.quotations == (text,)  # neighbours are one quotation; "built" and "mills" match
    apart = extractor.extract("river founded", PAGE, 200)
    assert apart.quotations == (
        "Harrowby is a town on the river Sill.",
        "Nobody knows who founded the town.",
    )


def test_without_a_shared_word_the_beginning_has_to_do():
    found = SentenceExtractor("english").extract("zebra", PAGE, 60)
    assert found.quotations == ("Harrowby is a town on the river Sill. It has two mills.",)


@given(st.text("ab. \n!。", max_size=80), st.text("ab ", max_size=8), st.integers(1, 60))
def test_quotations_are_substrings_within_the_room(text, goal, room):
    page = Document(docid="d", title="", text=text)
    found = SentenceExtractor("english").extract(goal, page, room)
    assert sum(map(len, found.quotations)) <= room
    at = 0
    for quotation in found.quotations:  # in text order
        at = text.index(quotation, at) + len(quotation)
    assert bool(found.quotations) == bool(text.strip())


@given(st.text("ab.? \n\u3002", max_size=60))
def test_sentences_cover_everything_but_space(text):
    spans = sentence_spans(text)
    assert "".join(text[a:b] for a, b in spans).split() == text.split() or "".join(
        text[a:b] for a, b in spans
    ).replace(" ", "").replace("\n", "") == text.replace(" ", "").replace("\n", "")
    assert all(a < b for a, b in spans)
    assert spans == sorted(spans)


@pytest.fixture
def reader(monkeypatch):
    monkeypatch.setenv("SPANIEL_TEST_KEY", "secret")
    server = Server()
    endpoint = EndpointConfig(
        model="m", base_url=server.url, api_key_env="SPANIEL_TEST_KEY", max_retries=0
    )
    extractor = make_extractor(EvidenceConfig(endpoint=endpoint))
    assert isinstance(extractor, LlmExtractor)
    yield server, extractor
    extractor._client.close_blocking()
    server.close()


def test_a_models_quotations_are_the_pages_own_words(reader):
    server, extractor = reader
    said = {
        "evidence": ["built by\n  Ilse Brandt", "built by the king", "on the river Sill"],
        "summary": "Ilse Brandt built them.",
    }
    server.answers = [answer(f"Here it is: {json.dumps(said)}")]
    found = extractor.extract("who built the mills", PAGE, 200)
    assert found.quotations == ("built by Ilse Brandt", "on the river Sill")
    assert found.summary == "Ilse Brandt built them."
    assert found.num_invented == 1
    prompt = server.bodies[0]["messages"][1]["content"]
    assert "Goal: who built the mills" in prompt
    assert PAGE.text in prompt
    assert extractor.extract("who built the mills", PAGE, 45).quotations == (
        "built by Ilse Brandt",
    )


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"evidence": "x"}', '{"evidence": [1]}'])
def test_an_answer_that_is_not_the_json_is_a_failure(reader, text):
    server, extractor = reader
    server.answers = [answer(text or "{}")]
    if text == '{"evidence": "x"}':  # a string is a list of letters: none stands for evidence
        assert extractor.extract("x", PAGE, 99).quotations == ()
        return
    with pytest.raises(ToolError, match="not the JSON that was asked for"):
        extractor.extract("x", PAGE, 99)


def test_a_dead_endpoint_is_a_failure(reader):
    server, extractor = reader
    server.answers = [(500, "{}")]
    with pytest.raises(ToolError, match="visit: InternalServerError"):
        extractor.extract("x", PAGE, 99)
