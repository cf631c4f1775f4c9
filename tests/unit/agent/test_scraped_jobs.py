"""A scraper on a node gets no figures of sensitive work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lattice.agent.scraped_jobs import ScrapedJobs
from lattice.domain.measured import JobSnapshot
from lattice.domain.nodejobs import JobIdentity


def _identity(job: int) -> JobIdentity:
    return JobIdentity(job_id=job, started=1000.0, boot_id="b", inode=job)


def _followed(job: int, *, admitted: bool = False, seal: object = None) -> Any:
    return SimpleNamespace(identity=_identity(job), admitted=admitted, seal=seal)


def _jobs(scraped: ScrapedJobs, *jobs: int) -> list[int]:
    snapshots = [JobSnapshot(_identity(each), 1000.0, 30.0, ()) for each in jobs]
    return [each.identity.job_id for each in scraped.of(snapshots)]


@pytest.fixture
def followed() -> list[Any]:
    return []


@pytest.fixture
def scraped(tmp_path: Path, followed: list[Any]) -> ScrapedJobs:
    return ScrapedJobs(tmp_path / "marker", lambda: followed)


def test_a_node_without_sensitive_work_shows_every_job(
    scraped: ScrapedJobs, followed: list[Any]
) -> None:
    followed[:] = [_followed(1), _followed(2, admitted=True)]
    assert _jobs(scraped, 1, 2, 3) == [1, 2, 3]


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("sensitive")
def test_a_sensitive_job_is_left_out(scraped: ScrapedJobs, followed: list[Any]) -> None:
    followed[:] = [_followed(1, admitted=True, seal=object()), _followed(2, admitted=True)]
    assert _jobs(scraped, 1, 2) == [2]


@pytest.mark.threat("sensitive")
def test_a_node_that_had_sensitive_work_shows_what_is_known_to_be_ordinary(
    scraped: ScrapedJobs, followed: list[Any], tmp_path: Path
) -> None:
    scraped.note_sensitive_work()
    followed[:] = [_followed(1), _followed(2, admitted=True)]
    assert _jobs(scraped, 1, 2, 3) == [2]
    again = ScrapedJobs(tmp_path / "marker", lambda: followed)
    assert _jobs(again, 1, 2, 3) == [2], "after a restart too"


def test_a_marker_that_can_not_be_written_counts_while_the_agent_runs(
    tmp_path: Path, followed: list[Any]
) -> None:
    scraped = ScrapedJobs(tmp_path / "missing" / "marker", lambda: followed)
    scraped.note_sensitive_work()
    assert _jobs(scraped, 1) == []
