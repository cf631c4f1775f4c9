from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import UsageError
from lattice.base.moment import age, duration, moment, parse_duration, parse_moment, silence
from lattice.base.style import Style

NOW = datetime(2026, 11, 15, 14, 2, 11, tzinfo=UTC)
ZURICH = ZoneInfo("Europe/Zurich")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "—"), (0, "00:00:00"), (3723, "01:02:03"), (93784, "1-02:03:04"), (-5, "00:00:00")],
)
def test_duration_has_one_style_and_unknown_is_not_nothing(seconds: int | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (40, "40 s"), (119, "1 min"), (7300, "2 h"), (200000, "2 d")],
)
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_moment_in_the_zone_asked_for() -> None:
    assert moment(NOW, Style(zone=UTC), NOW) == "14:02:11Z"
    assert moment(NOW, Style(zone=ZURICH), NOW) == "15:02:11"
    assert moment(NOW - timedelta(days=1), Style(zone=UTC), NOW) == "2026-11-14 14:02:11Z"
    assert moment(None, Style(), NOW) == "—"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", NOW - timedelta(minutes=5)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("2d", NOW - timedelta(days=2)),
        ("now", NOW),
        ("today", datetime(2026, 11, 14, 23, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 13, 23, tzinfo=UTC)),
        ("14:02", datetime(2026, 11, 15, 13, 2, tzinfo=UTC)),
        ("15:02:11", NOW),
        ("15:03", datetime(2026, 11, 14, 14, 3, tzinfo=UTC)),
        ("2026-11-01", datetime(2026, 10, 31, 23, tzinfo=UTC)),
        ("2026-11-15T10:00:00Z", datetime(2026, 11, 15, 10, tzinfo=UTC)),
        ("2026-07-01T10:00", datetime(2026, 7, 1, 8, tzinfo=UTC)),
    ],
)
def test_times_as_people_write_them(text: str, expected: datetime) -> None:
    assert parse_moment(text, NOW, ZURICH) == expected


@pytest.mark.parametrize("text", ["", "soon", "25:00", "5", "5x", "m", "99999999999999d", "1h30"])
def test_nonsense_is_a_usage_error_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_moment(text, NOW, UTC)
    assert caught.value.hint


@given(st.text())
def test_any_text_is_a_time_or_a_usage_error(text: str) -> None:
    try:
        found = parse_moment(text, NOW, UTC)
    except UsageError:
        return
    assert found.tzinfo is not None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400)]
)
def test_parse_duration(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "does not answer"),
        (0.0, "does not answer"),
        (0.9, "does not answer"),
        (1.0, "has not answered for 1 s"),
        (130.0, "has not answered for 2 min"),
    ],
)
def test_a_silence_of_no_time_has_no_time(seconds: float | None, words: str) -> None:
    assert silence(seconds) == words
