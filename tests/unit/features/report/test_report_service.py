"""Who gets a report, from where it comes, and what is said of that."""

# ruff: noqa: ARG002 - a port's methods have all their arguments
from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lattice.access.actor import Actor
from lattice.access.limits import Questions, Sessions
from lattice.base.errors import DataUnavailable, NotFound, RateLimited
from lattice.base.style import Style
from lattice.domain.allocation import State
from lattice.domain.runsummary import Use
from lattice.features.report.render import report_text
from lattice.wire.convert import message_of
from lattice.wire.v1 import report_pb2 as pb
from tests.fakes.in_memory_runs import InMemoryRunStore
from tests.unit.features.report.scripted import Site

ALICE = Actor(sub="sub-alice", user="alice")
BOB = Actor(sub="sub-bob", user="bob")


@pytest.mark.spec("AUTH-12")
async def test_anothers_job_is_not_there_and_nothing_is_asked_for_it() -> None:
    site = Site()
    with pytest.raises(NotFound):
        await site.service().report(BOB, "42")
    assert site.store.questions == []


@pytest.mark.spec("LIMIT-1")
async def test_it_is_paced_like_every_metric_query() -> None:
    asked: list[tuple[str, Questions]] = []

    class Full:
        async def ask(self, sub: str, kind: Questions) -> None:
            asked.append((sub, kind))
            raise RateLimited("too many")

        async def open(self, sub: str, kind: Sessions, session: str) -> object:
            raise AssertionError

    site = Site()
    with pytest.raises(RateLimited):
        await site.service(limits=Full()).report(ALICE, "42")
    assert asked == [("sub-alice", Questions.QUERY_METRICS)]
    assert site.store.questions == []


async def test_a_job_that_has_not_started_has_used_nothing() -> None:
    site = Site(state=State.PENDING, started=None, ended=None, nodes="")
    with pytest.raises(DataUnavailable) as error:
        await site.service().report(ALICE, "42")
    assert "has not started" in error.value.message


async def test_an_attempt_that_never_was() -> None:
    with pytest.raises(NotFound):
        await Site().service().report(ALICE, "42", 3)


@pytest.mark.spec("TOP-5")
async def test_an_old_job_is_answered_from_what_was_kept() -> None:
    site = Site()
    site.busy()
    await site.kept.keep(site.attempt, await site.meter().whole(site.attempt))
    site.store.questions.clear()
    site.store.silent = True
    site.clock.advance(400 * 86400)
    report = await site.service().report(ALICE, "42")
    assert report.kept is not None
    assert report.kept == site.clock.now() - timedelta(days=400)
    assert report.summary.value(Use.CPU_SECONDS) == 105_000.0
    assert report.summary.series == ()
    assert report.summary.origin.age_s == 400 * 86400 + 3610
    assert site.store.questions == []


@pytest.mark.spec("TOP-5")
async def test_a_silent_object_store_is_gone_around() -> None:
    site = Site()
    site.busy()
    site.objects.away = True
    report = await site.service().report(ALICE, "42")
    assert report.kept is None
    assert report.summary.value(Use.CPU_SECONDS) == 105_000.0


@pytest.mark.spec("TOP-5")
async def test_one_that_runs_is_measured_now_and_not_advised() -> None:
    site = Site(state=State.RUNNING, ended=None)
    site.store.tell("max cpu_seconds_total", n1=1.0, n2=1.0)
    report = await site.service().report(ALICE, "42")
    assert (report.finished, report.advice, report.kept) == (False, (), None)
    assert report.summary.run.wall_s == 3 * 3600


@pytest.mark.spec("TOP-5")
async def test_a_suspended_time_is_no_time_it_ran() -> None:
    site = Site(suspended_s=600)
    report = await site.service().report(ALICE, "42")
    assert report.summary.run.wall_s == 2 * 3600 - 600


@pytest.mark.parametrize("measured", [True, False])
async def test_grpc_says_the_same(measured: bool) -> None:
    site = Site()
    if measured:
        site.busy()
    report = await site.service().report(ALICE, "42")
    message = message_of(report, pb.Report)
    told = {each.name: each.value if each.HasField("value") else None for each in
            message.summary.used}  # fmt: skip
    assert told == {each.name: each.value for each in report.summary.used}
    assert message.HasField("kept") is False
    assert [each.flag for each in message.advice] == [each.flag for each in report.advice]


@pytest.mark.spec("TOP-5")
async def test_advice_is_of_the_summary_that_is_shown() -> None:
    site = Site(time_limit_s=48 * 3600)
    site.busy()
    summary = await site.meter().whole(site.attempt)
    await site.kept.keep(site.attempt, replace(summary, covered=0.1))
    report = await site.service().report(ALICE, "42")
    assert [each.rule for each in report.advice] == ["time_too_long"]
    assert "80 %" in report.withheld


async def test_the_runs_of_this_attempt_stand_beside_it() -> None:
    site = Site()
    (job,) = site.scheduler.allocations
    store = InMemoryRunStore()
    tags = {"slurm.job.id": "42", "slurm.cluster.name": job.cluster}
    assert job.started is not None
    store.add(
        "fit", tags, job.started + timedelta(minutes=1), ended=job.started + timedelta(hours=1)
    )
    store.add("other", {"slurm.job.id": "43"}, job.started)
    report = await site.service(runs=store).report(ALICE, "42")
    assert [each.name for each in report.runs] == ["fit"]
    assert "fit (finished)" in report_text(report, Style(width=80), site.clock.now())


async def test_a_silent_store_of_runs_delays_no_report() -> None:
    store = InMemoryRunStore()
    store.reason = "down"
    report = await Site().service(runs=store).report(ALICE, "42")
    assert report.runs == ()
