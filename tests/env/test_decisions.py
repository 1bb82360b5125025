"""Every way a call can be bad, numbered, and what each one does. One parser serves training,
evaluation and serving, so changing a line here changes all three."""

import pytest
from tests.doubles import WordEngine, lighthouse_documents

from spaniel.config import EnvConfig
from spaniel.env.episode import Environment, Episode
from spaniel.errors import QueryError
from spaniel.types import FinishReason, Question

QUESTION = Question(qid="q", text="Who taught the founder?", targets=("d1", "d3"))


def episode(dialect: str, **settings: int) -> Episode:
    cfg = EnvConfig(dialect=dialect, **settings)
    return Environment(WordEngine(lighthouse_documents()), cfg).episode(QUESTION, seed=7)


def write(dialect: str, name: str, argument: str, value: object) -> str:
    import json

    if dialect == "plain":
        return f"{name}({json.dumps(value)})"
    body = json.dumps({"name": name, "arguments": {argument: value}})
    return f"<tool_call>\n{body}\n</tool_call>"


def search(dialect: str, query: str) -> str:
    return write(dialect, "search", "query", query)


def report(dialect: str, ids: list[str]) -> str:
    return write(dialect, "report", "doc_ids", ids)


def turn(ep: Episode, text: str, reason: FinishReason = FinishReason.STOP):
    return ep.step(text, reason)


dialects = pytest.mark.parametrize("dialect", ["plain", "hermes"])


@dialects
def test_01_no_call_is_an_error_the_policy_reads_and_the_episode_goes_on(dialect):
    step = turn(episode(dialect), "I think the answer is Ilse Brandt.")
    assert step.errors == ("no_call",)
    assert step.report is None
    assert "no call found" in step.observation


@dialects
def test_02_an_unknown_tool_is_refused_and_the_tools_are_listed(dialect):
    step = turn(episode(dialect), write(dialect, "browse", "query", "x"))
    assert step.errors == ("unknown_tool",)
    assert "search, read, report" in step.observation


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "search", "arguments": {"query": "x"}'),
        ("hermes", "<tool_call>search marrow</tool_call>"),
        ("hermes", '<tool_call>["search"]</tool_call>'),
        ("hermes", '<tool_call>{"name": "search", "arguments": {"query": "x"}} done'),
        ("hermes", '<tool_call>{{"name": "search", "arguments": {"query": "x"}}}</tool_call>'),
        ("plain", 'search("marrow'),
        ("plain", 'search("marrow"'),
        ("plain", "search(marrow)"),
        ("plain", 'report([["a"]])'),
        ("plain", '__import__("os").system("true")'),
    ],
)
def test_03_broken_syntax_is_an_error_and_nothing_is_executed(dialect, text):
    step = turn(episode(dialect), text)
    assert step.errors in (("bad_syntax",), ("unknown_tool",), ("unknown_tool", "extra_calls"))
    assert step.call is None


@dialects
def test_04_a_missing_argument_is_named(dialect):
    text = "search()" if dialect == "plain" else '<tool_call>{"name": "search"}</tool_call>'
    step = turn(episode(dialect), text)
    assert step.errors == ("missing_argument",)
    assert "query" in step.observation


@dialects
def test_05_an_argument_that_no_tool_has_is_refused(dialect):
    text = (
        'search("a", top=3)'
        if dialect == "plain"
        else '<tool_call>{"name": "search", "arguments": {"query": "a", "top": 3}}</tool_call>'
    )
    assert turn(episode(dialect), text).errors == ("unknown_argument",)


@dialects
@pytest.mark.parametrize("value", [3, "", "   ", ["a"]])
def test_06_a_query_must_be_a_string_with_something_in_it(dialect, value):
    assert turn(episode(dialect), write(dialect, "search", "query", value)).errors == (
        "bad_argument",
    )


@dialects
def test_07_reading_an_id_never_shown_is_an_error_even_if_it_is_a_true_docid(dialect):
    step = turn(episode(dialect), write(dialect, "read", "doc_id", "d1"))
    assert step.errors == ("unknown_id",)
    assert step.docids == ()


@dialects
def test_08_reporting_an_empty_list_is_an_error_and_does_not_end_the_episode(dialect):
    step = turn(episode(dialect), report(dialect, []))
    assert step.errors == ("empty_list",)
    assert step.report is None


@dialects
def test_09_reported_ids_never_shown_stay_in_their_place_as_misses(dialect):
    ep = episode(dialect)
    turn(ep, search(dialect, "lighthouse"))
    shown = ep.aliases.show("d1")
    step = turn(ep, report(dialect, ["zzz", shown]))
    assert step.report == ("unknown:zzz", "d1")
    assert step.errors == ("unknown_id",)
    assert step.observation == ""


@dialects
def test_10_duplicate_ids_count_once_where_they_first_stand(dialect):
    ep = episode(dialect)
    turn(ep, search(dialect, "lighthouse company"))
    one, two = ep.aliases.show("d1"), ep.aliases.show("d2")
    step = turn(ep, report(dialect, [two, one, two]))
    assert step.report == ("d2", "d1")
    assert step.errors == ("duplicate_ids",)


@dialects
def test_11_a_turn_cut_by_the_token_limit_executes_nothing_even_if_a_call_is_complete(dialect):
    step = turn(episode(dialect), search(dialect, "lighthouse"), FinishReason.LENGTH)
    assert step.errors == ("cut",)
    assert step.hits == ()


@dialects
def test_12_of_several_calls_the_first_is_executed_and_the_policy_is_told(dialect):
    text = search(dialect, "lighthouse") + "\n" + report(dialect, ["zzz"])
    step = turn(episode(dialect), text)
    assert step.call is not None
    assert step.call.name == "search"
    assert step.report is None
    assert step.errors == ("extra_calls",)
    assert "one call a turn" in step.observation


@dialects
def test_13_a_call_inside_thinking_does_not_count(dialect):
    step = turn(episode(dialect), f"<think>\n{search(dialect, 'x')}\n</think>\nNow I know.")
    assert step.errors == ("call_in_thinking",)
    assert step.call is None


@dialects
def test_14_a_draft_in_thinking_does_not_disturb_the_call_after_it(dialect):
    text = f"<think>\n{report(dialect, ['zzz'])}\n</think>\n\n{search(dialect, 'lighthouse')}"
    step = turn(episode(dialect), text)
    assert step.errors == ()
    assert [hit.docid for hit in step.hits] == ["d1"]


@dialects
def test_15_thinking_that_never_ends_hides_the_call(dialect):
    step = turn(episode(dialect), f"<think>\n{search(dialect, 'x')}")
    assert step.errors == ("unclosed_thinking",)


@dialects
def test_16_thinking_opened_by_the_generation_prompt_is_still_thinking(dialect):
    text = f"{search(dialect, 'draft')}\n</think>\n{search(dialect, 'lighthouse')}"
    step = turn(episode(dialect), text)
    assert step.call is not None
    assert step.call.arguments == {"query": "lighthouse"}
    assert step.errors == ()


@dialects
def test_17_a_tool_result_written_by_the_policy_is_ignored_and_recorded(dialect):
    invented = (
        "\nResults:\nIlse Brandt [k7m] was his teacher.\n"
        if dialect == "plain"
        else "\n<tool_response>\nIlse Brandt [k7m]\n</tool_response>\n"
    )
    step = turn(episode(dialect), search(dialect, "lighthouse") + invented)
    assert step.errors == ("invented_result",)
    assert [hit.docid for hit in step.hits] == ["d1"]


def test_18_end_tags_inside_json_strings_are_text():
    ep = episode("hermes")
    step = turn(ep, search("hermes", "echo </tool_call> lighthouse <tool_call>"))
    assert step.errors == ()
    assert step.call is not None
    assert step.call.arguments == {"query": "echo </tool_call> lighthouse <tool_call>"}


@dialects
def test_19_a_search_without_hits_says_so_and_is_no_error(dialect):
    step = turn(episode(dialect), search(dialect, "xylophone"))
    assert step.errors == ()
    assert "No documents match" in step.observation


@dialects
def test_20_the_last_turn_is_announced_in_the_observation_before_it(dialect):
    ep = episode(dialect, max_turns=2)
    assert "Last turn" in turn(ep, search(dialect, "lighthouse")).observation
    assert "Last turn" not in turn(ep, search(dialect, "lighthouse")).observation


@dialects
def test_21_long_observations_are_cut_with_a_note_and_keep_whole_hits(dialect):
    ep = episode(dialect, max_observation_chars=100)
    step = turn(ep, search(dialect, "the lighthouse company founder"))
    assert len(step.shown) <= 100
    assert all(line.count("[") == 1 for line in step.shown.split("\n"))


@dialects
def test_22_a_document_longer_than_the_budget_is_cut_and_says_by_how_much(dialect):
    from spaniel.types import Document

    engine = WordEngine([Document(docid="long", title="Long", text="word " * 200)])
    cfg = EnvConfig(dialect=dialect, max_observation_chars=200)
    ep = Environment(engine, cfg).episode(QUESTION, seed=1)
    turn(ep, search(dialect, "word"))
    step = turn(ep, write(dialect, "read", "doc_id", ep.aliases.show("long")))
    assert "more characters]" in step.shown


@dialects
def test_23_several_reasons_to_refuse_a_turn_are_all_recorded_first_the_fatal_one(dialect):
    text = search(dialect, " ") + "\n" + search(dialect, "lighthouse")
    assert turn(episode(dialect), text).errors == ("bad_argument", "extra_calls")


@dialects
def test_24_half_a_surrogate_pair_is_the_policys_mistake_not_a_broken_tool(dialect):
    assert turn(episode(dialect), search(dialect, "\ud83d")).errors == ("bad_argument",)


@dialects
def test_25_a_query_the_engine_cannot_read_is_the_policys_mistake(dialect):
    class OneSite(WordEngine):
        def search(self, query: str, k: int):
            raise QueryError("a query can hold one site: filter, got 2")

    ep = Environment(OneSite([]), EnvConfig(dialect=dialect)).episode(QUESTION, seed=1)
    step = turn(ep, search(dialect, "site:a.org site:b.org"))
    assert step.errors == ("bad_argument",)
    assert "one site: filter" in step.observation


@dialects
def test_26_what_a_query_meant_but_could_not_have_is_said_below_the_hits(dialect):
    step = turn(episode(dialect), search(dialect, 'Marrow "company'))
    assert step.hits
    assert step.shown.endswith("\nNote: an unmatched quote was ignored.")
    short = turn(episode(dialect, max_observation_chars=100), search(dialect, 'Marrow "company'))
    assert len(short.shown) <= 100
    assert short.shown.endswith("Note: an unmatched quote was ignored.")
    assert turn(episode(dialect), search(dialect, "Marrow company")).shown.count("Note:") == 0


@dialects
def test_27_a_document_may_be_called_by_its_heading(dialect):
    ep = episode(dialect)
    hits = turn(ep, search(dialect, "lighthouse")).hits
    heading = f"Ardent Lighthouse [{ep.aliases.show(hits[0].docid)}]"
    step = turn(ep, write(dialect, "read", "doc_id", heading))
    assert step.docids == (hits[0].docid,)
    step = turn(ep, write(dialect, "report", "doc_ids", [heading, heading]))
    assert (step.report, step.errors) == ((hits[0].docid,), ("duplicate_ids",))


@dialects
def test_the_question_stands_below_every_observation_when_asked_for(dialect):
    cfg = EnvConfig(dialect=dialect, remind=True, max_turns=2)
    ep = Environment(WordEngine(lighthouse_documents()), cfg).episode(QUESTION, seed=7)
    step = turn(ep, search(dialect, "lighthouse"))
    assert step.shown.endswith("\nQuestion: Who taught the founder?\nLast turn: report now.")
    assert "Question: Who taught the founder?" in turn(ep, "nonsense").observation
    plain = episode(dialect)
    assert "Question:" not in turn(plain, search(dialect, "lighthouse")).observation
