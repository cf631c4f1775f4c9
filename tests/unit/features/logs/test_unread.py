"""What a node remembers of jobs without output, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.nodejobs import WatchPause
from lattice.features.logs.node.missed import NOT_SEEN, Unfollowed, UnreadJobs

NOON = 1794744000.0


def fresh(folder: Path) -> UnreadJobs:
    return UnreadJobs(folder / "unread.json", NOON)


@pytest.mark.spec("LOG-3")
def test_a_time_away_is_the_reason_for_a_job_of_that_time(tmp_path: Path) -> None:
    unread = fresh(tmp_path)
    unread.add_absence(WatchPause(NOON + 100, NOON + 116))
    away = "the agent was away from 2026-11-15T12:01:40Z to 2026-11-15T12:01:56Z"
    assert unread.of(7, NOON + 103, NOON + 108) == Unfollowed(away)
    assert unread.of(7, NOON + 90, NOON + 300) == Unfollowed(away)
    assert unread.of(7, NOON + 20, NOON + 30) == Unfollowed(NOT_SEEN)
    assert unread.of(7, NOON + 120, NOON + 130) == Unfollowed(NOT_SEEN)


@pytest.mark.spec("LOG-3")
def test_moments_are_shown_in_the_time_of_the_servers(tmp_path: Path) -> None:
    unread = fresh(tmp_path)
    unread.add_absence(WatchPause(NOON + 400, NOON + 416))
    away = "the agent was away from 2026-11-15T12:01:40Z to 2026-11-15T12:01:56Z"
    assert unread.of(7, NOON + 103, NOON + 108, ahead_s=300) == Unfollowed(away)


@pytest.mark.spec("LOG-3")
def test_before_the_first_agent_nobody_watched(tmp_path: Path) -> None:
    found = fresh(tmp_path).of(7, NOON - 20, NOON - 10)
    assert found == Unfollowed("no agent watched the node before 2026-11-15T12:00:00Z")


@pytest.mark.spec("LOG-3")
def test_a_job_is_known_by_its_number_and_its_time(tmp_path: Path) -> None:
    unread = fresh(tmp_path)
    unread.add_job(7, NOON + 10.5, "the file is gone")
    unread.add_job(8, NOON + 10.5, "")
    assert unread.of(7, NOON + 10, NOON + 15) == Unfollowed("the file is gone", over=True)
    assert unread.of(8, NOON + 10, NOON + 15) == Unfollowed("", over=True)
    assert unread.of(7, NOON + 100, NOON + 150) == Unfollowed(NOT_SEEN), "the number used again"


@pytest.mark.spec("LOG-3")
def test_an_agent_that_starts_again_knows_the_same(tmp_path: Path) -> None:
    unread = fresh(tmp_path)
    unread.add_job(7, NOON + 10.5, "the file is gone")
    unread.add_absence(WatchPause(NOON + 100, NOON + 116))
    again = UnreadJobs(tmp_path / "unread.json", NOON + 5000)
    for span in ((10, 15), (101, 102), (200, 201)):
        moments = (NOON + span[0], NOON + span[1])
        assert again.of(7, *moments) == unread.of(7, *moments)


def test_a_file_that_can_not_be_read_or_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "unread.json").write_text("{")
    unread = fresh(tmp_path)
    unread.add_job(7, NOON, "gone")
    nowhere = UnreadJobs(tmp_path / "no" / "folder.json", NOON)
    nowhere.add_job(7, NOON, "gone")
    assert nowhere.of(7, NOON, NOON).over


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), min_size=1, max_size=40))
def test_every_time_away_stays_the_reason_however_many_there_were(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]]
) -> None:
    unread = fresh(tmp_path_factory.mktemp("unread"))
    at = NOON
    away = []
    for pause, lasted in spans:
        since = at + pause
        at = since + lasted
        unread.add_absence(WatchPause(since, at))
        away.append((since, at))
    assert all("away" in unread.of(7, *span).reason for span in away)


def test_it_is_bounded(tmp_path: Path) -> None:
    unread = fresh(tmp_path)
    for number in range(1100):
        unread._contents.jobs.append(unread._contents.jobs[0]) if number > 5 else unread.add_job(
            number, NOON + number, "x" * 1000
        )
    unread.add_job(7, NOON, "last")
    assert len(unread._contents.jobs) == 1000
    assert (tmp_path / "unread.json").stat().st_size < 500_000
