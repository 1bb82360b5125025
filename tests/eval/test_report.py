import dataclasses
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaniel.config import PriceConfig
from spaniel.eval.bill import QueryUse, StageUse, make_bill
from spaniel.eval.charts import averaged, moving_mean, nice_ticks
from spaniel.eval.examples import Example, choose_examples
from spaniel.eval.formats import NONE
from spaniel.eval.funnel import Funnel
from spaniel.eval.markup import Markup, clean, el, facts
from spaniel.eval.report import Curve, Panel, ReportData, points_of, render_report, write_report
from spaniel.eval.results import EvalProtocol, build_results
from spaniel.eval.rows import QuestionRow, SystemResult
from spaniel.types import (
    FinishReason,
    Hit,
    Question,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)

HOSTILE = (
    "</pre></details></style></title><script>alert(1)</script><img src=x onerror=alert(1)>"
    '" onmouseover="alert(1)" <a href="javascript:alert(1)">x</a> <!-- ]]> &lt; \x00\x1b[2J'
    "\u202eevil\u2066 \ud800 https://evil.example/x.png url(https://evil.example)"
)


def trajectory(text=HOSTILE, *, qid="q1", number=0, report=("d1", "unknown:" + HOSTILE), ndcg=1.0):
    search = Turn(
        start=0,
        end=1,
        text=text,
        finish_reason=FinishReason.STOP,
        call=ToolCall(name=text, arguments={}),
        hits=(Hit(docid="d1", score=1.0, rank=1), Hit(docid=HOSTILE, score=0.5, rank=2)),
        errors=(text,),
        docids=(HOSTILE,),
        observation=text,
    )
    return Trajectory(
        qid=qid,
        trajectory_id=f"{qid}/{number}",
        token_ids=(0,),
        loss_mask=(True,),
        sampler_logprobs=(0.0,),
        policy_versions=(0,),
        turns=(search,),
        stop_reason=StopReason.REPORTED,
        report=report,
        reward=ndcg,
        reward_parts={"ndcg": ndcg},
    )


def results(text="x"):
    systems = []
    for name, value in (("bm25", 0.25), ("policy-rl", 0.75)):
        rows = tuple(
            QuestionRow(
                qid=f"q{i}",
                hops=2 + i % 2,
                kind=text,
                ndcg=value,
                recall=value,
                precision=value,
                f1=value,
                num_returned=3,
                searches=1,
                completion_tokens=9,
                stop_reason="reported" if name == "policy-rl" else "",
                funnel=Funnel(shown=(2, 1), read=(2, i % 2)) if name == "policy-rl" else None,
            )
            for i in range(4)
        )
        systems.append(SystemResult(system=name, rows=rows, made_by={text: text}))
    protocol = EvalProtocol(
        recipe=text,
        corpus_hash="c",
        num_documents=3,
        index_fingerprint="i",
        questions_hash="q",
        num_questions=4,
        system_prompt=text,
        tools=text,
        k=10,
        temperature=1.0,
        seed=0,
        version="0",
        settings={text: {text: [text, {text: text}]}},
    )
    return build_results(systems, protocol=protocol, not_run={"hybrid": text})


def page_data(text=HOSTILE):
    metrics = tuple({"step": i, "reward/mean": i / 10, "calls/mean": 2.0} for i in range(30))
    question = Question(qid="q1", text=text, targets=("d1",))
    query = QueryUse(prompt_tokens=9, completion_tokens=9, latency_s=1, machine_s=1)
    return ReportData(
        title=text,
        lead=text,
        results=results(text),
        curves=(Curve(name=text, metrics=metrics), Curve(name="other " + text, metrics=metrics)),
        examples=(
            Example(
                question=question, trajectory=trajectory(text), label=text, titles={"d1": text}
            ),
        ),
        bill=make_bill([StageUse(stage=text, machine_s=9)], query, PriceConfig(api_name=text)),
        preflight={text: {"reasons": [text, {"zero": None}]}},
        notes=(text,),
    )


def test_the_page_says_where_targets_are_lost():
    page = render_report(page_data("x"))
    section = page.split('id="funnel"')[1].split("</section>")[0]
    assert "policy-rl" in section
    assert "bm25" not in section
    cells = [c.split("<")[0] for c in section.split("<td>")[1:]]
    assert cells[-6:] == ["50%", "25%", NONE, NONE, NONE, NONE]


class Page(HTMLParser):
    """Tags, attributes and text as a browser would see them; checks that tags nest."""

    VOID = ("meta",)

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def hostile():
    return render_report(page_data())


def test_hostile_text_adds_no_element(hostile):
    assert Page(hostile).tags == Page(render_report(page_data("plain"))).tags


def test_nothing_runs_and_nothing_is_fetched(hostile):
    page = Page(hostile)
    banned = {"script", "img", "iframe", "object", "embed", "link", "form", "base", "image", "use"}
    assert not banned & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("src", "srcset", "style", "action", "xlink:href"), (tag, name)
        if name == "href":
            assert value.startswith("#")
    style = re.search(r"<style>(.*?)</style>", hostile, re.S)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_of_the_page_allows_only_its_style(hostile):
    metas = [
        value for tag, name, value in Page(hostile).attributes if (tag, name) == ("meta", "content")
    ]
    assert metas[0].startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'none'")


def test_hostile_text_is_shown_as_it_is(hostile):
    text = "".join(Page(hostile).texts)
    assert text.count("<script>alert(1)</script>") > 10
    assert "\x00" not in hostile
    assert "\u202e" not in hostile
    hostile.encode("utf-8")


def test_links_inside_the_page_lead_somewhere(hostile):
    attributes = Page(hostile).attributes
    targets = [value[1:] for _, name, value in attributes if name == "href"]
    ids = [value for _, name, value in attributes if name == "id"]
    assert targets == ids == list(dict.fromkeys(ids))
    assert "training" in ids


def test_every_chart_has_a_name_and_a_spoken_summary(hostile):
    page = Page(hostile)
    charts = page.tags.count("svg")
    # nDCG and F1, two hop counts, one kind, reward and calls.
    assert charts == 7
    assert sum(name == "aria-label" for tag, name, _ in page.attributes if tag == "svg") == charts
    assert page.tags.count("desc") == charts


def test_parts_without_data_are_left_out():
    page = Page(render_report(ReportData(title="t", results=results())))
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert ids == ["results", "hops", "kinds", "funnel", "behaviour", "protocol"]


def test_a_report_of_no_system_is_still_a_page():
    empty = {"protocol": {}, "rows": [], "comparisons": [], "not_run": [], "non_finite": 0}
    assert "h1" in Page(render_report(ReportData(title="t", results=empty))).tags


def test_targets_and_made_up_ids_are_marked_in_words():
    text = "".join(Page(render_report(page_data("x"))).texts)
    assert text.count("target") >= 3  # among the targets, the hits and the report
    assert "never shown" in text


def test_the_report_is_written_whole(tmp_path):
    write_report(tmp_path / "report.html", page_data())
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")


def test_a_failed_trajectory_says_what_broke():
    data = page_data("x")
    failed = dataclasses.replace(
        trajectory("x"), stop_reason=StopReason.INFRASTRUCTURE, error="disk full", reward=None
    )
    example = dataclasses.replace(data.examples[0], trajectory=failed)
    html = render_report(dataclasses.replace(data, examples=(example,)))
    assert "failed by the infrastructure: disk full" in html


def test_long_texts_are_cut_with_a_note():
    data = page_data("x")
    long = dataclasses.replace(data.examples[0], trajectory=trajectory("y" * 9000))
    html = render_report(dataclasses.replace(data, examples=(long,)))
    assert "[5,000 more characters]" in html
    assert "y" * 4001 not in html


def test_curves_leave_out_what_is_no_number():
    metrics = ({"step": 1, "m": 1}, {"step": 2, "m": math.nan}, {"step": 3, "m": None}, {"m": 4})
    assert points_of(Curve(name="c", metrics=metrics), "m") == ((1.0, 1.0),)


def test_a_single_step_and_a_run_without_the_metric_still_draw():
    curves = (Curve(name="a", metrics=()), Curve(name="b", metrics=({"step": 5, "m": 0.0},)))
    panels = (Panel(key="m", title="M"),)
    html = render_report(ReportData(title="t", results=results(), curves=curves, panels=panels))
    assert 'aria-label="M"' in html
    assert "nan" not in re.sub(r"<style>.*?</style>", "", html, flags=re.S)


def test_examples_are_the_best_and_the_worst_of_different_questions():
    pairs = [
        (Question(qid=qid, text="?", targets=("d1",)), trajectory(qid=qid, number=n, ndcg=ndcg))
        for qid, n, ndcg in (("q1", 0, 1.0), ("q1", 1, 0.9), ("q2", 0, 0.5), ("q3", 0, 0.0))
    ]
    unscored = dataclasses.replace(pairs[0][1], reward=None, qid="q4", trajectory_id="q4/0")
    pairs.append((Question(qid="q4", text="?"), unscored))
    chosen = choose_examples(pairs, {}, num_good=1, num_bad=1)
    assert [(e.label, e.trajectory.trajectory_id) for e in chosen] == [
        ("good", "q1/0"),
        ("bad", "q3/0"),
    ]
    assert len(choose_examples(pairs, {})) == 3


@settings(max_examples=60)
@given(st.text(), st.text())
def test_any_text_comes_back_from_its_element(text, attribute):
    page = Page(el("p", text, title=attribute))
    assert "".join(page.texts) == clean(text)
    assert page.attributes == [("p", "title", clean(attribute))]


def test_markup_is_not_escaped_twice():
    assert el("p", el("b", "1 < 2"), "&") == "<p><b>1 &lt; 2</b>&amp;</p>"
    assert isinstance(el("p"), Markup)


def test_facts_show_nested_data():
    html = facts({"num_kept": 3, "share": 0.25, "none": None, "ok": True, "list": [1, 2], "in": {}})
    words = " ".join(re.sub("<[^>]+>", " ", html).split())
    assert words == "num kept 3 share 0.25 none none ok yes list 1, 2 in none"


@given(
    st.floats(-1e6, 1e6).map(lambda v: round(v, 4)), st.floats(0, 1e6).map(lambda v: round(v, 4))
)
def test_ticks_enclose_the_values_and_are_few(low, span):
    ticks = nice_ticks(low, low + span)
    assert 2 <= len(ticks) <= 8
    slack = 1e-6 * max(1.0, abs(low), span)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert ticks == sorted(set(ticks))


def test_ticks_of_the_unit_interval_are_round():
    assert nice_ticks(0.28, 0.7) == [0.2, 0.4, 0.6, 0.8]


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=100), st.integers(1, 30))
def test_averaging_keeps_the_range_and_the_limit(values, limit):
    points = averaged([(float(i), v) for i, v in enumerate(values)], limit)
    assert 1 <= len(points) <= limit
    assert min(values) - 1e-9 <= min(y for _, y in points)
    assert max(y for _, y in points) <= max(values) + 1e-9


def test_a_moving_mean_is_the_mean_of_its_neighbours():
    assert moving_mean([0.0, 3.0, 6.0, 0.0], 3) == [1.5, 3.0, 3.0, 3.0]
