import itertools

import pytest

from spaniel.env.dialects import split_thinking
from spaniel.sft.thoughts import reduced, with_thought
from spaniel.types import Question
from spaniel.world import generate_world

WORLD = generate_world(300, 5)
QUESTIONS = WORLD.questions(120, seed=2, min_hops=2, max_hops=5)


def part(phrase, name, *docids, preface=""):
    return {"phrase": phrase, "name": name, "docids": list(docids), "preface": preface}


def question(text, *parts):
    return Question(qid="q", text=text, targets=("a",), metadata={"parts": list(parts)})


INNER = part("the firm that printed Dawn", "Orr & Co", "a")
OUTER = part("the town of the firm that printed Dawn", "Wick", "a", "b")


@pytest.mark.parametrize(
    ("read", "text"),
    [
        ([], "Who rules the town of the firm that printed Dawn?"),
        (["b"], "Who rules the town of the firm that printed Dawn?"),
        (["a"], "Who rules the town of Orr & Co?"),
        (["b", "a"], "Who rules Wick?"),
    ],
)
def test_what_is_known_is_filled_in_from_the_inside(read, text):
    asked = question("Who rules the town of the firm that printed Dawn?", INNER, OUTER)
    assert reduced(asked, read, "Orr & Co in Wick") == text


def test_a_name_that_was_not_shown_is_not_written():
    asked = question("Who rules the town of the firm that printed Dawn?", INNER)
    assert reduced(asked, ["a"], "nothing") == asked.text


def test_a_description_at_the_start_of_a_sentence_is_found():
    asked = question("The firm that printed Dawn or Ebb: which is older?", INNER)
    assert reduced(asked, ["a"], "Orr & Co") == "Orr & Co or Ebb: which is older?"


def test_a_preface_goes_when_its_comparison_is_decided():
    winner = part("the one that is older", "Ebb", "c", preface="compare Dawn and Ebb. ")
    asked = question("Compare Dawn and Ebb. Who wrote the one that is older?", winner)
    assert reduced(asked, ["c"], "Ebb") == "Who wrote Ebb?"


def test_questions_that_describe_nothing_stay_as_they_are():
    plain = Question(qid="q", text="who?", targets=("a",))
    assert reduced(plain, ["a"], "who?") == "Who?"


def test_a_thought_is_no_part_of_the_call():
    visible, thoughts, closed = split_thinking(with_thought("Who rules Wick?", 'search("Wick")'))
    assert (visible.strip(), thoughts, closed) == ('search("Wick")', "Who rules Wick?", True)
    assert with_thought("", "x") == "x"


def test_questions_of_a_world_get_shorter_step_by_step_and_never_name_the_answer_too_early():
    shortened = 0
    for asked in QUESTIONS:
        pages = list(dict.fromkeys(s["docid"] for s in asked.metadata["decomposition"]))
        shown = [WORLD.document(docid) for docid in pages]
        visible = "\n".join([asked.text, *(f"{d.title}\n{d.text}" for d in shown)])
        texts = [reduced(asked, pages[:n], visible) for n in range(len(pages) + 1)]
        assert texts[0] == asked.text
        assert all(len(b) <= len(a) + 30 for a, b in itertools.pairwise(texts))
        shortened += len(texts[-1]) < len(asked.text)
        if asked.kind != "comparison":  # the answer of one may be one of its two sides
            assert not any(answer in text for text in texts for answer in asked.answers)
    assert shortened > 0.9 * len(QUESTIONS)


def test_every_description_stands_in_its_question():
    for asked in QUESTIONS:
        for described in asked.metadata["parts"]:
            phrase = described["phrase"]
            assert phrase in asked.text or phrase[:1].upper() + phrase[1:] in asked.text
            assert set(described["docids"]) <= set(asked.targets)
