"""What a failing server is asked, and when."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from spaniel.index.remote.retry import error_of, seconds_of


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 0), ("", 0), ("3", 3), ("0.5", 0.5), ("-1", 0), ("soon", 0), ("inf", 1e9)],
)
def test_a_retry_after_in_seconds(header, seconds):
    assert seconds_of(header) == seconds


def test_a_retry_after_as_a_date():
    soon = datetime.now(UTC) + timedelta(seconds=60)
    assert 55 < seconds_of(format_datetime(soon, usegmt=True)) <= 60
    assert seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"error": "a"}', "a"),
        (b'{"message": "b", "statusCode": 403}', "b"),
        (b'{"detail": {"error": "c"}}', "c"),
        (b'{"error": {"code": 1, "detail": "d"}}', "d"),
        (b'{"other": 1}', '{"other": 1}'),
        (b'{"error": 3}', '{"error": 3}'),
        (b"<h1>no\n  JSON</h1>", "<h1>no JSON</h1>"),
        (b"\xff" * 500, "\ufffd" * 120),
        (b"", ""),
    ],
)
def test_what_a_failure_says_is_one_short_line(content, said):
    assert error_of(content) == said
