"""A language model as reranker, behind a server on the loopback device."""

import re

import pytest
from tests.doubles import WordEngine, lighthouse_documents
from tests.endpoint_server import Server, answer

from spaniel.config import EndpointConfig, EnvConfig, LlmRerankConfig
from spaniel.env.episode import Environment
from spaniel.errors import EndpointError, ToolError
from spaniel.index.engine import ContextEngine, SearchEngine
from spaniel.index.llm_rerank import LlmReranker, _orders, _ranking
from spaniel.index.rerank import RerankedEngine
from spaniel.types import Document, FinishReason, Hit, Question


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("SPANIEL_TEST_KEY", "secret")
    server = Server()
    yield server
    server.close()


@pytest.fixture
def rerank(server):
    made = []

    def make(**settings):
        endpoint = EndpointConfig(
            model="m", base_url=server.url, api_key_env="SPANIEL_TEST_KEY", max_retries=0
        )
        made.append(LlmReranker(LlmRerankConfig(endpoint=endpoint, **settings)))
        return RerankedEngine(WordEngine(lighthouse_documents()), made[-1], candidates=4)

    yield make
    for one in made:
        one._client.close_blocking()


def by_title(body):
    """A model that puts the titles in alphabetical order."""
    listed = re.findall(r"^([A-Za-z]): (.+)$", body["messages"][1]["content"], re.MULTILINE)
    order = [label for label, title in sorted(listed, key=lambda pair: pair[1])]
    return answer(str(order).replace("'", '"'))


def test_hits_come_in_the_models_order(rerank, server):
    server.reply = by_title
    engine = rerank()
    assert isinstance(engine, SearchEngine)
    assert isinstance(engine, ContextEngine)
    assert engine.waits
    plain = WordEngine(lighthouse_documents()).search("the company founder", 4)
    hits = engine.search("the company founder", 3)
    titles = [engine.read(h.docid).title for h in hits]
    assert titles == sorted(engine.read(h.docid).title for h in plain)[:3]
    assert [h.rank for h in hits] == [1, 2, 3]


def test_several_orders_are_asked_and_averaged(rerank, server):
    server.reply = by_title
    engine = rerank(num_orders=3)
    hits = engine.search("the company founder", 4)
    assert len(server.bodies) == 3
    lists = [re.findall(r"^\w: (.+)$", b["messages"][1]["content"], re.M) for b in server.bodies]
    assert len({tuple(titles) for titles in lists}) > 1
    assert [h.score for h in hits] == [0.0, -1.0, -2.0, -3.0]


def test_a_model_that_always_likes_the_first_place_cancels_out_over_orders(rerank, server):
    server.answers = [answer('["A", "B", "C", "D"]')]
    engine = rerank(num_orders=40)
    scores = [h.score for h in engine.search("the company founder", 4)]
    assert max(scores) - min(scores) < 1.0  # 3 for one order


def test_the_model_sees_the_task_and_the_earlier_steps(rerank, server):
    server.reply = by_title
    environment = Environment(rerank(), EnvConfig(dialect="plain"))
    question = Question(qid="q", text="Who taught the founder?", targets=("d3",))
    episode = environment.episode(question, seed=1)
    shown = episode.step('search("the company founder")', FinishReason.STOP).shown
    alias = re.search(r"\[(\w+)\]", shown).group(1)
    episode.step(f'read("{alias}")', FinishReason.STOP)
    episode.step('search("the trade")', FinishReason.STOP)
    text = server.bodies[-1]["messages"][1]["content"]
    assert "Who taught the founder?\nsearched: the company founder\nread: " in text
    assert "Query: the trade" in text


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('["B", "A", "C"]', [1, 0, 2]),
        ('Sure! ```json\n["C"]\n```', [2, 0, 1]),
        ('[1, 2] no: ["B", "Z", "B", "AC", 7]', [1, 0, 2]),
        ('["A"] hmm, rather ["C", "B"]', [2, 1, 0]),
    ],
)
def test_what_an_answer_orders(text, places):
    assert _ranking(text, 3) == places


@pytest.mark.parametrize("text", ["", "B, A, C", "[]", "[3]", '["Z"]', "[[[[", '["AB"]'])
def test_an_answer_that_orders_nothing_is_an_error(text):
    with pytest.raises(EndpointError, match="orders nothing"):
        _ranking(text, 3)


def test_orders_depend_on_the_query_alone():
    assert _orders("x", 5, 3) == _orders("x", 5, 3)
    assert _orders("x", 5, 3)[0] == [0, 1, 2, 3, 4]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in _orders("x", 5, 3))


def test_a_failed_rerank_is_a_failure_or_is_counted(rerank, server, capsys):
    server.answers = [(500, "{}")]
    with pytest.raises(ToolError, match="rerank: InternalServerError"):
        rerank().search("the company founder", 3)
    engine = rerank(on_error="keep")
    kept = [engine.search("the company founder", 3) for _ in range(2)]
    plain = WordEngine(lighthouse_documents()).search("the company founder", 3)
    assert [h.docid for h in kept[0]] == [h.docid for h in plain]
    assert engine.reranker.num_kept == 2
    assert capsys.readouterr().err.count("the engine's order is kept") == 1


def test_one_hit_needs_no_model(rerank, server):
    assert len(rerank().search("Sill", 3)) == 1
    assert server.bodies == []


def test_hits_behind_the_last_label_keep_their_order(rerank, server):
    server.reply = by_title
    reranker = rerank().reranker
    documents = [Document(docid=f"d{i:02}", title=f"T{99 - i}", text="") for i in range(60)]
    hits = [Hit(docid=d.docid, score=1.0, rank=i + 1) for i, d in enumerate(documents)]
    scores = reranker.score("x", hits, documents)
    assert scores[:52] == [-float(51 - place) for place in range(52)]  # the model turned them round
    assert scores[52:] == [-float(place) for place in range(52, 60)]
