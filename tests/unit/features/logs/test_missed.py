"""Jobs that came and went while the agent did not watch are taken up, whatever kept it away."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.base.errors import DataUnavailable, LatticeError, NotFound, Unavailable
from lattice.domain.nodejobs import (
    JobAppeared,
    JobIdentity,
    NodeJobEnded,
    StartSign,
    WatchPause,
)
from lattice.features.logs.node import collector as module
from lattice.features.logs.node import missed as missing
from lattice.features.logs.node.intake import PastJob
from lattice.features.logs.node.spool import StreamSpool
from tests.unit.features.logs.test_collecting import JOB, Jobs, Site, over, streams, until

_LINES = b"one\n"
BATCH = {"stdout batch": _LINES}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for each in (module, missing):
        monkeypatch.setattr(each, "_RETRY_S", (0.01,))
    monkeypatch.setattr(missing, "_ROUNDS_S", (0.0, 0.01))
    monkeypatch.setattr(missing, "_MARK_S", 0.02)
    made = Site(tmp_path)
    made.outputs.held.clear()
    made.server.path = str(made.out)
    return made


def moment(site: Site) -> float:
    return site.clock.now().timestamp()


async def watching(site: Site) -> None:
    """The agent has asked for what it missed before its start."""
    await until(lambda: len(site.server.since) >= 2)
    await until((site.folder / missing.MARK).exists)


def ran(site: Site, lasted_s: float = 5.0) -> PastJob:
    """A job that Slurm ran just now."""
    begun = moment(site)
    site.clock.advance(lasted_s)
    past = PastJob(JOB, begun, moment(site))
    site.server.past.append(past)
    return past


def be_away(site: Site, since: float) -> None:
    site.jobs.absences.put_nowait(WatchPause(since, moment(site)))


def notice_late(site: Site) -> None:
    """The kernel's notices tell of the job after its end, and nothing but its number."""
    identity = JobIdentity("boot", JOB, 0, moment(site))
    job = replace(site.job, identity=identity, started_by=StartSign.SEEN, steps=(), daemons=())
    site.jobs.events.put_nowait(JobAppeared(job))
    site.jobs.events.put_nowait(NodeJobEnded(job))


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("starved-agent")
async def test_a_short_job_while_the_agent_was_stopped(site: Site) -> None:
    async with site.agent() as agent:
        await watching(site)
        since = moment(site)
        ran(site)
        site.clock.advance(10)
        be_away(site, since)
        await until(lambda: over(agent))
        assert streams(agent) == BATCH
        assert min(site.server.since[2:]) <= since


@pytest.mark.spec("LOG-3")
async def test_one_that_notices_tell_of_too_is_read_once(site: Site) -> None:
    async with site.agent() as agent:
        await watching(site)
        since = moment(site)
        ran(site)
        site.clock.advance(10)
        notice_late(site)
        await until(lambda: over(agent))
        asked = len(site.server.since)
        be_away(site, since)
        await until(lambda: len(site.server.since) >= asked + 2)
        assert [each.identity.inode for each in agent.followed] == [0]
        assert streams(agent) == BATCH


@pytest.mark.spec("LOG-3")
async def test_two_runs_of_a_job_in_one_absence_are_both_taken_up(site: Site) -> None:
    """By notices alone nobody can know which of them is meant."""
    async with site.agent() as agent:
        await watching(site)
        since = moment(site)
        first = ran(site)
        site.clock.advance(10)
        second = ran(site)
        site.clock.advance(10)
        notice_late(site)
        be_away(site, since)
        wanted = {first.started, second.started}
        await until(lambda: wanted <= {each.identity.started for each in agent.followed})


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("starved-agent")
async def test_a_short_job_while_no_agent_ran(site: Site) -> None:
    async with site.agent():
        await watching(site)
    since = moment(site)
    ran(site)
    site.clock.advance(60)
    site.jobs, site.server.since = Jobs(), []
    async with site.agent() as agent:
        await until(lambda: over(agent))
        assert streams(agent) == BATCH
    assert site.server.since[0] <= since
    assert site.server.since[0] > since - 60, "and not all the past is asked for"


@pytest.mark.spec("LOG-3")
async def test_a_short_job_while_stopped_and_cut_off_from_every_server(site: Site) -> None:
    async with site.agent() as agent:
        await watching(site)
        since = moment(site)
        site.server.error = Unavailable("No server.")
        ran(site)
        be_away(site, since)
        asked = len(site.server.since)
        await until(lambda: len(site.server.since) > asked + 3)
        assert not agent.followed
        site.server.error = None
        await until(lambda: over(agent))
        assert streams(agent) == BATCH


@pytest.mark.spec("LOG-3")
async def test_an_agent_killed_before_it_had_the_answer_asks_again(site: Site) -> None:
    async with site.agent():
        await watching(site)
        since = moment(site)
        site.server.error = Unavailable("No server.")
        ran(site)
        be_away(site, since)
        asked = len(site.server.since)
        await until(lambda: len(site.server.since) > asked + 1)
        site.clock.advance(100)
    site.server.error, site.jobs, site.server.since = None, Jobs(), []
    async with site.agent() as agent:
        await until(lambda: over(agent))
        assert streams(agent) == BATCH
    assert site.server.since[0] <= since


@pytest.mark.spec("LOG-3")
async def test_while_accounting_is_silent_what_is_known_is_taken_and_the_rest_asked_for(
    site: Site,
) -> None:
    async with site.agent() as agent:
        await watching(site)
        site.server.complete = False
        since = moment(site)
        ran(site)
        be_away(site, since)
        await until(lambda: over(agent))
        asked = len(site.server.since)
        await until(lambda: len(site.server.since) > asked + 5)
        site.server.past.append(PastJob(JOB + 1, since + 1, since + 2))
        site.server.complete = True
        await until(lambda: JOB + 1 in {each.identity.job_id for each in agent.followed})


@pytest.mark.spec("LOG-3")
async def test_a_site_without_accounting_is_not_asked_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing, "_MOST_INCOMPLETE", 3)
    site.server.complete = False
    async with site.agent():
        await until((site.folder / missing.MARK).exists)
        assert len(site.server.since) == 8


@pytest.mark.spec("LOG-3")
async def test_a_helper_that_is_missing_delays_and_loses_nothing_over_a_restart_too(
    site: Site,
) -> None:
    site.outputs.away = True
    async with site.agent() as agent:
        await watching(site)
        since = moment(site)
        ran(site)
        be_away(site, since)
        await until(lambda: any("lattice-helper" in each.trouble for each in agent.followed))
        site.clock.advance(3600)
        await asyncio.sleep(0.1)
    site.jobs = Jobs()
    site.outputs.away = False
    async with site.agent() as agent:
        await until(lambda: over(agent))
        assert streams(agent) == BATCH


@pytest.mark.spec("LOG-3")
async def test_a_disk_that_is_full_delays_and_loses_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [True]
    make = StreamSpool.__init__

    def init(self: StreamSpool, *words: object) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(self, *words)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamSpool, "__init__", init)
    async with site.agent() as agent:
        await watching(site)
        since = moment(site)
        ran(site)
        be_away(site, since)
        await until(lambda: any("No space left" in each.trouble for each in agent.followed))
        full[0] = False
        await until(lambda: over(agent))
        assert streams(agent) == BATCH


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("starved-agent")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "no such file"),
        (DataUnavailable("Only its owner may read it."), "Only its owner may read it."),
    ],
    ids=["file gone", "refused"],
)
async def test_a_job_that_leaves_no_stream_is_remembered_with_the_reason(
    site: Site, error: LatticeError | None, reason: str
) -> None:
    site.out.unlink()
    async with site.agent() as agent:
        await watching(site)
        since = moment(site)
        past = ran(site)
        be_away(site, since)
        asked = len(site.server.since)
        await until(lambda: len(site.server.since) > asked)
        site.server.error = error
        await until(lambda: agent.unread.of(JOB, past.started, past.ended).over)
        assert reason in agent.unread.of(JOB, past.started, past.ended).reason


@pytest.mark.spec("LOG-3")
async def test_a_job_noticed_late_that_slurm_did_not_know_is_asked_for_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NOT_FOUND_TRIES", 1)
    async with site.agent() as agent:
        await watching(site)
        since = moment(site)
        site.server.error = NotFound("Slurm knows of no such job.")
        notice_late(site)
        await until(lambda: bool(agent.followed))
        await until(lambda: not agent.followed)
        site.server.error = None
        ran(site)
        await until(lambda: over(agent))
        assert streams(agent) == BATCH
        assert min(site.server.since[2:]) < since


@pytest.mark.spec("LOG-3")
async def test_the_time_away_is_remembered(site: Site) -> None:
    async with site.agent() as agent:
        await watching(site)
        since = moment(site)
        site.clock.advance(16)
        be_away(site, since)
        await until(lambda: "away" in agent.unread.of(JOB, since + 2, since + 7).reason)
    site.jobs = Jobs()
    async with site.agent() as agent:
        assert "away" in agent.unread.of(JOB, since + 2, since + 7).reason
