"""The local index against a live search engine: recall, blind judgements, the commands."""

import json
import sys

import pytest
from tests.doubles import WordEngine
from tests.endpoint_server import Server, answer
from tests.web_server import Reply, Web
from tests.web_server import answer as api_answer

from spaniel.cli import main
from spaniel.config import CalibrationConfig, EndpointConfig, LiveConfig
from spaniel.errors import ArtifactError, ConfigError, DataError
from spaniel.eval.calibrate import LiveResults, calibrate, record_live, share_interval
from spaniel.index.live.engine import LiveEngine
from spaniel.index.live.providers import WebResult
from spaniel.index.remote import retry
from spaniel.store import read_records, write_records
from spaniel.types import Document, Question


def document(docid, title, text, url):
    return Document(docid=docid, title=title, text=text, url=url)


DOCUMENTS = [
    document("w", "Wells", "deep wells are dug by hand", "https://www.wells.org/dug/"),
    document("p", "Pumps", "pumps lift water out of wells", "http://pumps.org/lift?id=1"),
    document("t", "Tea", "tea grows on hills", "https://tea.org/"),
    document("n", "No address", "wells without an address", ""),
]
ENGINE = WordEngine(DOCUMENTS)


def live(*urls, snippet="what the live engine shows"):
    return tuple(WebResult(url=url, title="T", snippet=snippet) for url in urls)


@pytest.fixture
def recorded(tmp_path):
    def write(*records):
        path = tmp_path / "live.jsonl"
        write_records(path, records)
        return path

    return write


def run(path, cfg=None, **settings):
    return calibrate(ENGINE, path, cfg or CalibrationConfig(), **settings)


def test_recall_is_of_the_evidence_that_the_live_engine_found(recorded):
    path = recorded(
        LiveResults(
            qid="both",
            query="wells water",
            results=live("http://wells.org/dug", "https://pumps.org/lift?id=1", "https://x.org/"),
            evidence=("w", "https://pumps.org/lift?utm_source=s&id=1#top", "https://tea.org/"),
        ),
        LiveResults(
            qid="one",
            query="wells",
            results=live("https://wells.org/dug", "https://tea.org", "https://elsewhere.org/"),
            evidence=("w", "t", "https://elsewhere.org/"),
        ),
        LiveResults(query="hills", results=live("https://x.org"), evidence=("t",)),
        LiveResults(query="tea", results=live("https://tea.org/")),
    )
    found = run(path)
    # "both": tea.org is evidence that the live engine missed, so 2 of 2. "one": of w, t and a
    # page that the index lacks, "wells" finds w locally: 1 of 3.
    assert [(r.qid, r.num_evidence, r.num_found) for r in found.queries] == [
        ("both", 2, 2),
        ("one", 3, 1),
    ]
    assert found.recall.mean == pytest.approx((1 + 1 / 3) / 2)
    assert (found.num_queries, found.num_not_found, found.num_unlabelled) == (4, 1, 1)
    assert found.judgement is None
    assert found.lines()[0].startswith("evidence recall@10   0.667  [0.333, 1.000]  2 queries")
    assert "not judged: set index.calibration.judge" in found.lines()[1]


def test_only_the_first_k_local_hits_count(recorded):
    path = recorded(
        LiveResults(query="deep wells", results=live("http://pumps.org/lift?id=1"), evidence=("p",))
    )
    assert run(path, k=1).recall.mean == 0
    assert run(path, k=3).recall.mean == 1


def test_evidence_named_twice_counts_once(recorded):
    path = recorded(
        LiveResults(
            query="tea",
            results=live("https://wells.org/dug", "https://tea.org/"),
            evidence=("w", "http://wells.org/dug/", "t"),
        )
    )
    assert [(r.num_evidence, r.num_found) for r in run(path).queries] == [(2, 1)]


def test_without_evidence_found_live_there_is_no_number(recorded):
    found = run(recorded(LiveResults(query="wells", results=(), evidence=("n",))))
    assert found.recall is None
    assert "no query has evidence that the live engine found" in found.lines()[0]
    json.dumps(found.as_dict(), allow_nan=False)


def test_evidence_of_another_corpus_is_refused(recorded):
    path = recorded(LiveResults(query="wells", results=(), evidence=("q9",)))
    with pytest.raises(DataError, match=r"evidence 'q9' .* neither an address nor a docid"):
        run(path)


def test_a_missing_or_empty_recording_is_refused(recorded, tmp_path):
    with pytest.raises(ArtifactError, match="is missing"):
        run(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="holds no queries"):
        run(recorded())


# --- the judge --------------------------------------------------------------------------------


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.setenv("SPANIEL_TEST_KEY", "secret")
    server = Server()
    yield server
    server.close()


def judged(judge, **settings):
    endpoint = {"model": "m", "base_url": judge.url, "api_key_env": "SPANIEL_TEST_KEY"}
    endpoint |= {"max_retries": 0} | settings.pop("endpoint", {})
    return CalibrationConfig(judge=EndpointConfig(**endpoint), **settings)


PAIRED = LiveResults(
    query="wells water tea",
    results=live("https://wells.org/dug", "https://pumps.org/lift?id=1", "https://tea.org/"),
)


def excerpts(body):
    """The two excerpts of a prompt, and its page."""
    text = body["messages"][1]["content"]
    page = text.partition("Page: ")[2].partition("\n")[0]
    first, _, second = text.partition("Excerpt 1: ")[2].partition("\n\nExcerpt 2: ")
    return page, first, second


def test_a_preference_counts_when_both_orders_agree(judge, recorded):
    def reply(body):
        page, first, _ = excerpts(body)
        live_first = first.startswith("what the live")
        if "wells" in page:  # the local one is better, wherever it stands
            return answer("2" if live_first else "1")
        if "pumps" in page:  # the live one is better
            return answer("Excerpt 1." if live_first else "**2**")
        return answer("1")  # whatever stands first

    judge.reply = reply
    found = run(recorded(PAIRED), judged(judge)).judgement
    assert (found.num_pairs, found.local, found.live, found.ties) == (3, 1, 1, 1)
    assert found.unparsable == 0
    assert found.local_share.mean == 0.5
    assert len(judge.bodies) == 6


def test_the_judge_is_not_told_which_excerpt_is_whose(judge, recorded):
    judge.answers = [answer("tie")]
    run(recorded(PAIRED), judged(judge))
    for body in judge.bodies:
        text = json.dumps(body["messages"]).replace("what the live engine shows", "")
        assert "live" not in text
        assert "local" not in text
    shown = [excerpts(body) for body in judge.bodies]
    assert sorted(shown) == sorted((page, two, one) for page, one, two in shown)


@pytest.mark.parametrize("said", ["Both are fine.", "3", "1 or 2", ""])
def test_an_answer_that_is_no_verdict_is_counted_apart(judge, recorded, said):
    judge.answers = [answer(said or None, reasoning="hm", finish="length")]
    found = run(recorded(PAIRED), judged(judge))
    j = found.judgement
    assert (j.unparsable, j.local, j.live, j.ties, j.local_share) == (3, 0, 0, 0, None)
    assert "0 decided, 0 ties, 3 unparsable of 3 pairs" in found.lines()[1]


def test_equal_excerpts_are_ties_unasked_and_empty_ones_are_left_out(judge, recorded):
    same = LiveResults(
        query="tea",
        results=(
            WebResult(url="https://tea.org", snippet="tea  grows on hills"),
            WebResult(url="https://tea.org/#again", snippet="once is enough"),
        ),
    )
    empty = LiveResults(query="pumps", results=live("http://pumps.org/lift?id=1", snippet=" "))
    found = run(recorded(same, empty), judged(judge)).judgement
    assert (found.num_pairs, found.ties) == (1, 1)
    assert judge.bodies == []


def test_at_most_so_many_pairs_are_shown(judge, recorded):
    judge.answers = [answer("tie")]
    path = recorded(*[PAIRED] * 5)
    found = run(path, judged(judge, max_pairs=4))
    assert found.num_matched == 15
    assert found.judgement.num_pairs == 4
    assert len(judge.bodies) == 8


def test_judgements_are_paid_once(judge, recorded, tmp_path):
    judge.answers = [answer("tie")]
    cfg = judged(judge, endpoint={"cache": tmp_path / "answers.db"})
    assert run(recorded(PAIRED), cfg) == run(recorded(PAIRED), cfg)
    assert len(judge.bodies) == 6


def test_a_judge_that_breaks_is_one_line_never_a_tie(judge, recorded):
    judge.answers = [(500, "{}")]
    with pytest.raises(ConfigError, match=r"the judge m gave no answer: InternalServerError"):
        run(recorded(PAIRED), judged(judge))


def test_a_judge_without_a_key_is_said_before_anything_is_searched(judge, tmp_path, monkeypatch):
    monkeypatch.delenv("SPANIEL_TEST_KEY")
    with pytest.raises(ConfigError, match="SPANIEL_TEST_KEY"):
        run(tmp_path / "none.jsonl", judged(judge))


def test_the_interval_of_a_share_is_over_queries():
    alone = share_interval([[1.0], [0.0]] * 50)
    together = share_interval([[1.0] * 25, [0.0] * 25, [1.0] * 25, [0.0] * 25])
    assert alone.mean == together.mean == 0.5
    assert (alone.n, together.n) == (100, 4)
    assert alone.high - alone.low < 0.25 < together.high - together.low
    assert share_interval([[1.0, 0.0, 0.0]]).mean == pytest.approx(1 / 3)
    lopsided = share_interval([[1.0] * 9, [0.0]])
    assert (lopsided.mean, lopsided.low, lopsided.high) == (0.9, 0.0, 1.0)


# --- recording, and the commands --------------------------------------------------------------


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setenv("SPANIEL_TEST_KEY", "secret")
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = Web()
    rows = [
        {"link": "https://www.wells.org/dug", "title": "W", "snippet": "Wells, dug."},
        {"link": "https://elsewhere.org/", "title": "E", "snippet": "Elsewhere."},
    ]
    server.routes["/search"] = api_answer({"organic": rows})
    yield server
    server.close()


def test_what_is_recorded_can_be_compared(web, tmp_path):
    cfg = LiveConfig(provider="serper", base_url=web.url, api_key_env="SPANIEL_TEST_KEY")
    engine = LiveEngine(cfg)
    path = tmp_path / "live.jsonl"
    questions = [Question(qid="q1", text="deep wells", targets=("w",))]
    assert record_live(engine, questions, 10, path) == 1
    engine.close()
    (record,) = read_records(path, LiveResults)
    assert record == LiveResults(
        qid="q1",
        query="deep wells",
        evidence=("w",),
        results=(
            WebResult(url="https://www.wells.org/dug", title="W", snippet="Wells, dug."),
            WebResult(url="https://elsewhere.org/", title="E", snippet="Elsewhere."),
        ),
    )
    assert run(path).recall.mean == 1


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["spaniel", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    return stopped.value.code or 0, out, err


@pytest.fixture
def recipe(tmp_path, web):
    corpus = [
        f'{{"docid": "{d.docid}", "title": "{d.title}", "text": "{d.text}", "url": "{d.url}"}}\n'
        for d in DOCUMENTS
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(corpus))
    questions = [
        {"qid": f"q{n}", "text": f"{d.text}?", "targets": [d.docid]}
        for n, d in enumerate(DOCUMENTS)
    ]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'name = "t"\nrun_dir = "{tmp_path}/run"\n'
        f'[corpus.source]\ntype = "jsonl"\ncorpus = "{tmp_path}/corpus.jsonl"\n'
        f'questions = "{tmp_path}/questions.jsonl"\n'
        "[questions]\ntest_frac = 0.5\nresplit = true\n"
        f'[index.live]\nprovider = "serper"\nbase_url = "{web.url}"\nmax_retries = 0\n'
        f'api_key_env = "SPANIEL_TEST_KEY"\ncache = "{tmp_path}/web.db"\n'
    )
    return path


def test_from_questions_to_a_calibrated_index(recipe, web, monkeypatch, capsys):
    def spaniel(*arguments):
        return command(monkeypatch, capsys, *arguments)

    code, _, err = spaniel("index", "calibrate", recipe)
    assert (code, err.count("\n")) == (2, 1)
    assert "live.jsonl is missing: run `spaniel index record` first" in err
    for words in (("index", "build"), ("questions", "split")):
        assert spaniel(*words, recipe)[0] == 0
    code, _, err = spaniel("index", "record", recipe)
    assert code == 0
    assert "2 queries, 2 requests sent" in err
    code, out, _ = spaniel("index", "calibrate", recipe, "--k", "3")
    assert code == 0
    assert out.startswith("evidence recall@3")
    written = json.loads((recipe.parent / "run/index/calibration.json").read_text())
    assert written["k"] == 3
    assert written["num_queries"] == 2
    code, _, err = spaniel("index", "calibrate", recipe, "--index.engine", "live")
    assert code == 2
    assert "calibrate a local engine" in err


def test_the_web_is_searched_without_an_index(recipe, web, monkeypatch, capsys):
    code, out, _ = command(
        monkeypatch, capsys, "index", "search", recipe, "wells", "--index.engine", "live"
    )
    assert code == 0
    assert "  1  1.0000  W  [https://www.wells.org/dug]\n     Wells, dug.\n" in out
    assert len(web.requests) == 1


@pytest.mark.parametrize("fault", ["no key", "no network", "refused", "no section"])
def test_without_key_or_network_recording_is_one_line(recipe, web, monkeypatch, capsys, fault):
    for words in (("index", "build"), ("questions", "split")):
        command(monkeypatch, capsys, *words, recipe)
    words = "the environment variable SPANIEL_TEST_KEY"
    if fault == "no key":
        monkeypatch.delenv("SPANIEL_TEST_KEY")
    elif fault == "no network":
        web.close()
        words = "nothing was recorded: serper at"
    elif fault == "refused":
        web.routes["/search"] = Reply("{}", 401)
        words = "refuses the key in SPANIEL_TEST_KEY"
    else:
        recipe.write_text(recipe.read_text().partition("[index.live]")[0])
        words = "set index.live"
    code, out, err = command(monkeypatch, capsys, "index", "record", recipe)
    assert (code, out) == (2, "")
    errors = [line for line in err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert words in errors[0]
    assert not (recipe.parent / "run/index/live.jsonl").exists()
    if fault == "no network":
        web.__init__()  # for the fixture to close
