"""Progress lines."""

import pytest

from spaniel.progress import Progress, track


@pytest.fixture(autouse=True)
def nothing_counting(monkeypatch):
    """Another test's exception may still hold a generator that was counting when it was raised."""
    monkeypatch.setattr(Progress, "_counting", None)


def test_a_count_inside_another_is_silent(capsys):
    for _ in track(range(2), "worlds", 2, "worlds"):
        for _ in track(range(3), "reading", 3, "docs"):
            pass
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("worlds: 2/2 worlds")


def test_an_interrupted_count_does_not_silence_the_next(capsys):
    try:
        with Progress("first", 2):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    for _ in track(range(3), "second", 3):
        pass
    assert capsys.readouterr().err.startswith("second: 3/3")
