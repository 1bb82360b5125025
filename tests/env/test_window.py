import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.config import WindowConfig
from spaniel.env.window import num_omitted, text_without_thoughts, without_thoughts
from spaniel.renderer import ByteRenderer

RENDERER = ByteRenderer()


@pytest.mark.parametrize(
    ("keep", "at_once", "expected"),
    [
        (3, 2, [0, 0, 0, 0, 0, 2, 2, 4, 4, 6]),
        (1, 1, [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (4, 100, [0] * 10),
    ],
)
def test_old_observations_go_in_batches(keep, at_once, expected):
    window = WindowConfig(observations=keep, dropped_at_once=at_once)
    assert [num_omitted(n, window) for n in range(10)] == expected


@given(st.integers(0, 600), st.integers(1, 20), st.integers(1, 20))
def test_the_latest_observations_always_stay_and_never_too_many(count, keep, at_once):
    window = WindowConfig(observations=keep, dropped_at_once=at_once)
    whole = count - num_omitted(count, window)
    assert min(count, keep) <= whole < keep + at_once
    assert num_omitted(count, window) <= num_omitted(count + 1, window)


def test_without_a_window_nothing_goes():
    assert num_omitted(1000, None) == 0


def test_a_thought_is_cut_from_the_ids_and_nothing_is_encoded_anew():
    ids = RENDERER.encode_completion('<think>Where is it?</think>\nsearch("lighthouse")')
    kept = without_thoughts(ids, RENDERER.decode)
    assert ids[len(ids) - len(kept) :] == kept
    assert RENDERER.decode(kept) == '\nsearch("lighthouse")'


def test_a_thought_whose_end_shares_a_token_stays():
    pieces = {0: "<think>", 1: "hm", 2: "</think>sea", 3: 'rch("x")'}

    def decode(ids):
        return "".join(pieces[i] for i in ids)

    assert without_thoughts((0, 1, 2, 3), decode) == (0, 1, 2, 3)


@given(st.text(alphabet="ab<>/ \n", max_size=20), st.text(alphabet="ab(", max_size=9))
def test_ids_and_text_lose_the_same(thought, call):
    text = f"<think>{thought}</think>{call}"
    kept = without_thoughts(RENDERER.encode_completion(text), RENDERER.decode)
    assert RENDERER.decode(kept) == text_without_thoughts(text) == call


def test_text_without_a_thought_stays():
    assert text_without_thoughts('search("x")') == 'search("x")'
    ids = RENDERER.encode_completion('search("x")')
    assert without_thoughts(ids, RENDERER.decode) == ids
