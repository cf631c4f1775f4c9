"""Reading at moments that all nodes share, whatever jobs, clocks and probes do."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest

from lattice.domain.metric import Sample
from tests.unit.features.telemetry.node.measuring import T0, Node, job_of, settle


@pytest.mark.spec("WATCH-3")
async def test_a_job_is_read_soon_and_then_at_the_shared_moments() -> None:
    async with Node(job_of()) as node:
        await node.pass_s(65)
    assert node.heard.moments() == [1, 30, 60]
    assert len(node.probes.asked) == 3, "nothing is read in between"
    assert {each.resolution_s for each in node.heard.snapshots} == {30.0}


@pytest.mark.spec("WATCH-3")
async def test_each_job_at_its_own_interval_and_one_reading_for_all() -> None:
    async with Node(job_of(7), job_of(8)) as node:
        node.intervals[8] = 1.0
        await node.pass_s(32)
    assert node.heard.moments(7) == [1, 30]
    assert node.heard.moments(8) == list(range(1, 33))
    assert node.probes.asked.count((7, 8)) == 2
    assert len(node.probes.asked) == 32


@pytest.mark.spec("WATCH-3")
async def test_a_mode_is_in_force_within_a_second() -> None:
    async with Node(job_of()) as node:
        await node.pass_s(12.25)
        node.intervals[7] = 1.0
        node.sampling.nudge()
        await node.pass_s(3)
        node.intervals[7] = 30.0
        node.sampling.nudge()
        await node.pass_s(20)
    assert node.heard.moments() == [1, 12, 13, 14, 15, 30]


async def test_moments_are_the_servers_and_samples_too_where_the_nodes_clock_is_wrong() -> None:
    async with Node(job_of(), ahead_s=302.0) as node:
        await node.pass_s(31)
    assert node.heard.moments() == [1, 30]
    for snapshot in node.heard.snapshots:
        for sample in snapshot.samples:
            assert sample.time == pytest.approx(snapshot.time, abs=0.3)


async def test_a_clock_that_is_set_changes_no_moment_and_makes_no_time_pass() -> None:
    async with Node(job_of()) as node:
        node.intervals[7] = 1.0
        await node.pass_s(3)
        node.clock._now += timedelta(seconds=-300)
        await node.pass_s(3)
    assert node.heard.moments() == [1, 2, 3, 4, 5, 6]
    times = [each.samples[0].time for each in node.heard.snapshots]
    assert [later - sooner for sooner, later in pairwise(times)] == (pytest.approx([1.0] * 5))


@pytest.mark.spec("SRC-2")
async def test_no_rate_goes_across_the_moment_at_which_the_servers_time_becomes_known() -> None:
    async with Node(job_of(), ahead_s=302.0, linked=False) as node:
        node.intervals[7] = 1.0
        await node.pass_s(3)
        assert node.heard.moments() == [303, 304, 305]
        node.ahead = 302.0
        await node.pass_s(1)
        life = node.sights.find(7, 0.0)
        assert life is not None
        assert life.before is None
        assert len(node.judges) == 2, "what was judged by another time is forgotten"
        looked = await node.sampling.snapshot(job_of().identity)
        assert looked is not None
        assert looked.time <= T0 + 4
        await node.pass_s(2)
        assert life.before is not None
    assert node.heard.moments() == [303, 304, 305, 4, 5, 6]


@pytest.mark.spec("SRC-2")
async def test_what_was_read_while_the_clock_was_set_is_not_told() -> None:
    async with Node(job_of()) as node:

        def set_clock() -> None:
            node.clock._now += timedelta(seconds=60)
            node.ahead = 60.0  # as the link will find
            node.probes.during = lambda: None

        node.probes.during = set_clock
        await node.pass_s(31)
    assert node.heard.moments() == [30]


async def test_an_agent_that_was_frozen_reads_once_late_and_then_on_time() -> None:
    async with Node(job_of()) as node:
        node.intervals[7] = 1.0
        await node.pass_s(2)
        node.clock.advance(40.4)
        await settle()
        await node.pass_s(1.6, step_s=0.2)
    assert node.heard.moments() == [1, 2, 42, 43, 44]
    late = node.heard.snapshots[2]
    assert late.samples[0].time == pytest.approx(T0 + 42.4)


async def test_a_step_that_ends_is_read_at_once() -> None:
    async with Node(job_of(steps=(0, 1))) as node:
        await node.pass_s(7.5)
        node.jobs.put(job_of(steps=(1,)))
        await settle()
        assert node.heard.moments() == [1, 7.5]
        node.jobs.put(job_of(steps=(1, 2)))
        await settle()
    assert node.heard.moments() == [1, 7.5], "one that begins is not"


async def test_the_last_of_a_job_is_told_if_it_can_be_read() -> None:
    async with Node(job_of()) as node:
        await node.pass_s(7.5)
        node.jobs.end(job_of())
        await settle()
        assert node.heard.moments() == [1, 7.5]
        assert node.heard.there == []
        await node.pass_s(60)
    assert node.heard.moments() == [1, 7.5]
    assert node.waits < 100


@pytest.mark.spec("SRC-2")
async def test_nothing_is_told_of_a_job_that_cant_be_read_any_more() -> None:
    async with Node(job_of()) as node:
        await node.pass_s(7.5)
        node.probes.gone.add(7)
        node.jobs.end(job_of())
        await settle()
    assert node.heard.moments() == [1]


@pytest.mark.spec("TOP-2")
async def test_a_requeued_jobs_counters_are_not_told_as_those_of_the_life_before() -> None:
    first, second = job_of(inode=1), job_of(inode=2)
    async with Node(first) as node:
        await node.pass_s(7.5)
        node.jobs.end(first)
        node.jobs.put(second)
        await settle()
        await node.pass_s(2)
    lives = [each.identity for each in node.heard.snapshots]
    assert lives == [first.identity, second.identity]


@pytest.mark.spec("TOP-2")
async def test_what_ended_while_it_was_read_is_not_told() -> None:
    async with Node(job_of()) as node:
        node.probes.during = lambda: setattr(node.jobs, "jobs", {})
        await node.pass_s(2)
    assert node.heard.moments() == []


async def test_a_reading_that_fails_is_not_the_end() -> None:
    async with Node(job_of()) as node:

        def fail() -> None:
            node.probes.during = lambda: None
            raise RuntimeError("a defect")

        node.probes.during = fail
        await node.pass_s(31)
    assert node.heard.moments() == [30]


async def test_a_look_takes_the_newest_if_it_is_fresh_and_reads_otherwise() -> None:
    async with Node(job_of()) as node:
        identity = job_of().identity
        await node.pass_s(2)
        fresh = await node.sampling.snapshot(identity)
        assert fresh is node.heard.snapshots[-1]
        await node.pass_s(5)
        one, other = await asyncio.gather(
            node.sampling.snapshot(identity), node.sampling.snapshot(identity)
        )
        assert one is not None
        assert one is other, "who looks at the same time shares a reading"
        assert one.time == T0 + 7
        assert isinstance(one.readings[0], Sample)
        assert node.heard.moments() == [1], "a look is for whoever looked"
        node.jobs.end(job_of())
        await settle()
        assert await node.sampling.snapshot(identity) is None
