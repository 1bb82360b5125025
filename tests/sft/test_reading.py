"""Reading drills."""

import pytest
from tests.doubles import WordEngine

from spaniel.config import EnvConfig
from spaniel.env.dialects import split_thinking
from spaniel.env.episode import Environment
from spaniel.renderer import ByteRenderer
from spaniel.sft.ledgers import CHAIN, TIGHT
from spaniel.sft.reading import CHAIN_PAGES, chain_drills, reading_drills, tight_walks
from spaniel.world import generate_world

RENDERER = ByteRenderer()
ENVIRONMENT = Environment(WordEngine([]), EnvConfig(dialect="plain", remind=True))


def texts(drill):
    """What is shown and what is written, in turn."""
    parts, own = [], None
    for token, mine in zip(drill.token_ids.tolist(), drill.own.tolist(), strict=True):
        if mine != own:
            parts.append([])
            own = mine
        parts[-1].append(token)
    return [RENDERER.decode(part) for part in parts]


def test_every_question_of_a_drill_is_answered_by_words_of_its_page():
    world = generate_world(200, 3)
    drills = list(reading_drills(world, 120, RENDERER, ENVIRONMENT, seed=1))
    num_questions = 0
    for drill in drills:
        assert drill.hops == 0
        first, *rest = texts(drill)
        page = first.split("Results:\n")[1].split("\nQuestion: ")[0]
        assert first.count("Question: ") == 1
        for written in rest[::2]:
            num_questions += 1
            assert written.startswith('search("')
            assert written.removeprefix('search("').split('")')[0] in page
        assert all("Question: " in shown for shown in rest[1::2])
    assert 100 <= num_questions <= 120  # a few answers are not spelled out
    assert len({texts(d)[0].split("\n")[1] for d in drills}) == len(drills)  # each page once


def test_drills_are_a_function_of_world_and_seed():
    def ids(seed):
        world = generate_world(200, 3)
        drills = reading_drills(world, 30, RENDERER, ENVIRONMENT, seed=seed)
        return [d.token_ids.tolist() for d in drills]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


@pytest.mark.parametrize("thoughts", [False, True])
def test_a_tight_walk_types_visible_names_and_reports_every_page_it_was_shown(thoughts):
    world = generate_world(200, 3)
    questions = world.questions(60, seed=2, min_hops=2, max_hops=4)
    walks = list(tight_walks(questions, world, RENDERER, ENVIRONMENT, thoughts=thoughts))
    assert len(walks) > 50
    for walk in walks:
        assert walk.hops == TIGHT
        first, *rest = texts(walk)
        visible, calls, shown = first, rest[::2], rest[1::2]
        assert calls[-1].startswith("report(")
        for call, page in zip(calls, shown, strict=False):
            call = split_thinking(call)[0].strip()
            assert call.removeprefix('search("').split('")')[0] in visible
            visible += page
        titles = {page.split("Results:\n")[1].split(" [")[0] for page in shown}
        question = next(q for q in questions if q.text in first)
        targets = question.targets
        assert all(f"\nQuestion: {question.text}" in page for page in shown)
        assert titles == {world.document(docid).title for docid in targets}
        assert calls[-1].count('"') == 2 * len(targets)


def test_a_chain_drill_walks_questions_over_pages_that_are_all_shown_before():
    world = generate_world(200, 3)
    drills = list(chain_drills(world, 300, RENDERER, ENVIRONMENT, seed=2))
    by_text = {q.text: q for q in world.questions(300, seed=2, min_hops=2, max_hops=4)}
    walked = []
    for drill in drills:
        assert drill.hops == CHAIN
        first, *rest = texts(drill)
        pages, question = first.split("Results:\n")[1].rsplit("\nQuestion: ", 1)
        heads = [page.split("\n")[0] for page in pages.split("\n\n")]
        assert len(heads) == len(set(heads)) <= CHAIN_PAGES
        asked, found = by_text[question.split("<")[0].rstrip()], []
        walked.append(asked.qid)
        for call, shown in zip(rest[::2], [*rest[1::2], ""], strict=True):
            if call.startswith("search("):
                name = call.removeprefix('search("').split('")')[0]
                assert name in asked.text or name in pages
                head = shown.split("Results:\n")[1].split("\n")[0]
                assert head in heads
                assert f"\nQuestion: {asked.text}" in shown
                found.append(head)
            else:
                ids = [head.split("[")[1].rstrip("]") for head in found]
                assert call.startswith("report([" + ", ".join(f'"{i}"' for i in ids) + "])")
                titles = [head.split(" [")[0] for head in found]
                assert sorted(titles) == sorted(world.document(d).title for d in asked.targets)
                if shown:
                    text = shown.split("Question: ")[1].split("<")[0].rstrip()
                    asked, found = by_text[text], []
                    walked.append(asked.qid)
    assert len(walked) == len(set(walked)) > 250  # each once; a few steps have no visible name
    assert len(walked) / len(drills) > 1.5
