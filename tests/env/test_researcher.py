"""The researcher's tools."""

import re

import pytest
from tests.doubles import BrokenEngine, WordEngine, lighthouse_documents

from spaniel.config import EnvConfig
from spaniel.env.episode import Environment
from spaniel.env.researcher import ResearcherEpisode
from spaniel.errors import ToolError
from spaniel.types import Document, FinishReason, Question

QUESTION = Question(qid="q", text="Who taught the founder?", targets=("d3", "d4"))


def episode(engine=None, **settings):
    engine = engine or WordEngine(lighthouse_documents())
    cfg = EnvConfig(tools="researcher", dialect="plain", **settings)
    return Environment(engine, cfg).episode(QUESTION, seed=3)


def act(ep, text):
    return ep.step(text, FinishReason.STOP)


def ids(step):
    return re.findall(r"\[(\w{3})\]", step.shown)


def test_the_prompt_names_the_researchers_tools():
    ep = episode()
    assert isinstance(ep, ResearcherEpisode)
    prompt = ep.reset()[0].content
    assert "visit(" in prompt
    assert "report(" in prompt
    assert "read(" not in prompt


def test_each_query_has_its_results_and_a_page_one_id():
    step = act(episode(), 'search(["company founder", "Harrowby town"])')
    first, second = step.shown.split("\n\n")
    assert first.startswith("Results for: company founder\n")
    assert second.startswith("Results for: Harrowby town\n")
    assert step.errors == ()
    assert len(step.hits) == len({h.docid for h in step.hits})
    again = act(episode(), 'search(["company", "company founder"])')
    assert len(set(ids(again))) < len(ids(again))  # shown under both queries, by the same id


def test_an_address_is_shown():
    page = Document(docid="w", title="Wells", text="deep wells", url="https://wells.org/a")
    step = act(episode(WordEngine([page])), 'search(["wells"])')
    assert re.search(r"Wells \[\w{3}\] https://wells.org/a deep wells", step.shown)


def test_pages_are_read_for_a_goal_and_reported():
    ep = episode()
    found = act(ep, 'search(["founder trade", "teacher"])')
    alias = {h.docid: a for h in found.hits for a in ids(found) if ep.aliases.docid(a) == h.docid}
    step = act(ep, f'visit(["{alias["d3"]}", "{alias["d4"]}"], "where was she born")')
    assert step.docids == ("d3", "d4")
    assert "Tavin Orrel [" in step.shown
    assert "born in Harrowby" in step.shown
    done = act(ep, f'report(["{alias["d3"]}", "{alias["d4"]}"])')
    assert done.report == ("d3", "d4")


def test_an_unknown_page_is_told_and_the_others_are_read():
    ep = episode()
    known = ids(act(ep, 'search(["Harrowby"])'))[0]
    step = act(ep, f'visit(["zzz", "{known}"], "river")')
    assert step.errors == ("unknown_id",)
    assert "no page 'zzz'" in step.shown
    assert len(step.docids) == 1


def test_too_many_queries_and_blank_ones_are_said():
    step = act(episode(max_queries=2), 'search(["company", "", "town", "town", "river"])')
    assert "Error: a query must not be blank." in step.shown
    assert step.shown.endswith("Note: 2 more were ignored; 2 at once.")
    assert step.errors == ("bad_argument",)
    empty = act(episode(), "search([])")
    assert empty.errors == ("empty_list",)


@pytest.mark.parametrize("limit", [100, 180, 400])
def test_an_observation_keeps_its_budget(limit):
    ep = episode(max_observation_chars=limit)
    step = act(ep, 'search(["the company founder", "town river", "teacher born"])')
    assert len(step.shown) <= limit
    visited = act(ep, f'visit({ids(step)!r}, "company town")'.replace("'", '"'))
    assert len(visited.shown) <= limit


def test_a_broken_engine_is_a_failure_of_the_infrastructure():
    with pytest.raises(ToolError, match="the retriever is down"):
        act(episode(BrokenEngine(lighthouse_documents())), 'search(["x"])')
