import asyncio
import re
from dataclasses import replace

import pytest
from tests.doubles import WordEngine, lighthouse_documents

from spaniel.config import DemonstrationConfig, EnvConfig, RewardConfig
from spaniel.env.dialects import split_thinking
from spaniel.env.episode import Environment
from spaniel.errors import ConfigError
from spaniel.renderer import ByteRenderer
from spaniel.rollout import Runner
from spaniel.sft.demonstrate import demonstrate, make_teacher
from spaniel.types import Question, StopReason

QUESTION = Question(
    qid="q",
    text="Who founded the company behind the Ardent Lighthouse?",
    targets=("d1", "d2", "d3"),
)


def walk(questions, noise=0.0, **settings):
    cfg = DemonstrationConfig(noise=noise, **settings)
    engine = WordEngine(lighthouse_documents())
    environment = Environment(engine, EnvConfig(dialect="plain", max_turns=10, max_results=2))
    renderer = ByteRenderer()
    teacher = make_teacher(questions, cfg, environment, renderer, seed=1)
    runner = Runner(teacher, renderer, environment, RewardConfig())
    return asyncio.run(demonstrate(questions, cfg, runner, seed=1))


def test_the_teacher_walks_from_the_question_to_every_target():
    (trajectory,), counts = walk([QUESTION])
    assert trajectory.reward_parts["ndcg"] == 1.0
    assert trajectory.report == ("d1", "d2", "d3")
    assert trajectory.stop_reason is StopReason.REPORTED
    assert counts == {"made": 1, "kept": 1, "ndcg": 1.0}


def test_every_word_it_types_was_visible_before():
    trajectories, _ = walk([QUESTION], noise=0.5, per_question=8, min_reward=0.0)
    assert len(trajectories) == 8
    for trajectory in trajectories:
        visible = QUESTION.text
        for turn in trajectory.turns:
            if turn.call is not None and turn.call.name == "search":
                words = re.findall(r"\w+", turn.call.arguments["query"])
                assert all(word in visible for word in words)
            visible += turn.observation


def test_noise_adds_detours_that_it_recovers_from():
    straight, _ = walk([QUESTION])
    noisy, _ = walk([QUESTION], noise=0.9, per_question=8, min_reward=0.0)
    assert max(len(t.turns) for t in noisy) > len(straight[0].turns)
    assert max(t.reward_parts["ndcg"] for t in noisy) == 1.0


def test_demonstrations_below_the_bar_are_dropped_and_counted():
    hopeless = Question(qid="h", text="xyzzy?", targets=("d5",))
    kept, counts = walk([hopeless])
    assert kept == []
    assert counts == {"made": 1, "kept": 0, "ndcg": 0.0}


def test_the_label_teacher_refuses_tools_it_does_not_know():
    engine = WordEngine(lighthouse_documents())
    environment = Environment(engine, EnvConfig(tools="researcher"))
    with pytest.raises(ConfigError, match="the finder's tools only"):
        make_teacher([QUESTION], DemonstrationConfig(), environment, ByteRenderer(), seed=1)


def test_it_thinks_the_question_anew_when_it_has_read_what_the_question_describes():
    phrase = "the company behind the Ardent Lighthouse"
    part = {"phrase": phrase, "name": "Marrow", "docids": ["d1"], "preface": ""}
    asked = replace(QUESTION, metadata={"parts": [part]})
    (thinking,), _ = walk([asked], thoughts=True)
    (silent,), _ = walk([asked])
    thoughts = [split_thinking(turn.text)[1] for turn in thinking.turns]
    assert [t for t in thoughts if t] == ["Who founded Marrow?"]
    assert [t.call for t in thinking.turns] == [t.call for t in silent.turns]
    assert not any("<think>" in turn.text for turn in silent.turns)
