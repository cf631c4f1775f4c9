"""What a timeline is put together from, for whom, and while parts are away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from lattice.access.actor import Actor, Role
from lattice.base.errors import NotFound, Unavailable
from lattice.domain.allocation import Attempt, State
from lattice.domain.attempts import JobAttempt
from lattice.domain.audit import AuditAct, SensitiveAuditRequired
from lattice.domain.log_volume import LogLoss, LogVolume
from lattice.domain.metricstore import SeriesPoints, StoreSilent
from lattice.domain.run_events import NodeEvents, RunEvent, RunEventKind
from lattice.domain.session_span import SessionSpan
from lattice.domain.sharing import ReadKind, Standing
from lattice.domain.training_run import RunPoint
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.timeline.lines import thinned
from lattice.features.timeline.model import (
    MOST_ATTEMPTS,
    MOST_LINE_POINTS,
    EventKind,
    PhaseKind,
    Timeline,
)
from lattice.features.timeline.service.timeline import TimelineService
from lattice.features.timeline.wiring import timeline_service
from lattice.foundation.foundation import Foundation
from lattice.wire.convert import message_of
from lattice.wire.v1 import timeline_pb2
from tests.fakes.claimed_nodes import FixedClaims, node_claim
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.foundation import in_memory_foundation
from tests.fakes.in_memory_runs import InMemoryRunStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock
from tests.fakes.node_looks import InMemoryNodeLooks
from tests.fakes.required_trail import RequiredTrail

ALICE = Actor(sub="sub-alice", user="alice")
BOB = Actor(sub="sub-bob", user="bob")
ADMIN = Actor(sub="sub-root", user="root", role=Role.SYSTEM_ADMIN)
MINUTE = timedelta(minutes=1)
VAULT = Vclusters((Vcluster("vault", VclusterKind.SENSITIVE, "vault"),))


class RisingStore:
    """Answers every question about processors with a line that rises; other metrics are empty."""

    def __init__(self) -> None:
        self.reason = ""
        self.asked = 0

    async def query(self, promql: str, *, at: float, within_s: float = 10.0) -> object:
        raise AssertionError(promql, at, within_s)

    async def query_range(
        self,
        promql: str,
        *,
        start: float,
        end: float,
        step_s: float,
        within_s: float = 10.0,  # noqa: ARG002 - the port's argument
    ) -> tuple[SeriesPoints, ...]:
        self.asked += 1
        if self.reason:
            raise StoreSilent(self.reason)
        if "cpu_seconds_total" not in promql:
            return ()
        count = int((end - start) / step_s) + 1
        return (SeriesPoints({}, tuple((start + at * step_s, float(at)) for at in range(count))),)

    async def series(
        self, match: str, *, start: float, end: float, within_s: float = 10.0
    ) -> tuple[Mapping[str, str], ...]:
        raise AssertionError(match, start, end, within_s)


class NothingStore(RisingStore):
    """Has no values."""

    async def query_range(self, promql: str, **_: object) -> tuple[SeriesPoints, ...]:  # type: ignore[override]
        assert promql
        return ()


class Site:
    """Job 42 of alice: preempted once, and running again."""

    def __init__(self, **parts: object) -> None:
        self.clock = ManualClock()
        now = self.clock.now()
        self.begin = now - 60 * MINUTE
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.job = allocation(
            42,
            "alice",
            "research",
            submitted=self.begin + 30 * MINUTE,
            first_submitted=self.begin,
            started=self.begin + 40 * MINUTE,
            attempt=2,
            attempts=(
                self.attempt(1, 0, 5, 30, State.PREEMPTED),
                self.attempt(2, 30, 40, None, State.RUNNING),
            ),
        )
        self.metrics = RisingStore()
        self.trained = InMemoryRunStore()
        tags = {"slurm.job.id": "42", "slurm.cluster.name": "lab"}
        loss = tuple(
            RunPoint(self.begin + 6 * MINUTE + timedelta(seconds=at), at, 1 / (at + 1))
            for at in range(1000)
        )
        self.trained.add(
            "fit", tags, self.begin + 6 * MINUTE, metrics={"loss": loss, "x": loss[:1]}
        )
        self.sessions: list[SessionSpan] = []
        self.sessions_away = False
        self.parts = parts

    def attempt(
        self, number: int, submitted: int, started: int, ended: int | None, state: State
    ) -> Attempt:
        return Attempt(
            number=number,
            state=state,
            submitted=self.begin + submitted * MINUTE,
            started=self.begin + started * MINUTE,
            ended=None if ended is None else self.begin + ended * MINUTE,
            nodes="n1",
            node_count=1,
        )

    async def spans(self, user: str, name: str) -> tuple[SessionSpan, ...]:
        assert (user, name) == ("alice", self.job.ref)
        if self.sessions_away:
            raise Unavailable("etcd does not answer.")
        return tuple(self.sessions)

    @property
    def foundation(self) -> Foundation:
        self.scheduler.allocations = [self.job]
        parts = {"run_store": self.trained, "metrics": self.metrics} | self.parts
        return in_memory_foundation(self.clock, scheduler=self.scheduler, **parts)

    @property
    def service(self) -> TimelineService:
        return timeline_service(self.foundation, self.spans)

    async def timeline(self, actor: Actor = ALICE) -> Timeline:
        return await self.service.timeline(actor, "42")


async def test_phases_are_those_that_slurm_knows() -> None:
    site = Site()
    found = await site.timeline()
    assert [
        (each.kind, each.attempt, each.started - site.begin, each.ended and each.ended - site.begin)
        for each in found.phases
    ] == [
        (PhaseKind.WAITING, 1, 0 * MINUTE, 5 * MINUTE),
        (PhaseKind.RUNNING, 1, 5 * MINUTE, 30 * MINUTE),
        (PhaseKind.WAITING, 2, 30 * MINUTE, 40 * MINUTE),
        (PhaseKind.RUNNING, 2, 40 * MINUTE, None),
    ]
    assert (found.begin, found.until, found.finished) == (site.begin, site.clock.now(), False)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (State.CONFIGURING, PhaseKind.STARTING),
        (State.COMPLETING, PhaseKind.ENDING),
        (State.SUSPENDED, PhaseKind.RUNNING),
    ],
)
async def test_the_phase_of_now_is_by_the_state(state: State, kind: PhaseKind) -> None:
    site = Site()
    site.job = replace(site.job, state=state)
    assert (await site.timeline()).phases[-1].kind is kind


async def test_measured_lines_are_of_their_attempt_and_in_its_time() -> None:
    site = Site()
    lines = [each for each in (await site.timeline()).lines if not each.run]
    assert [(each.name, each.attempt, each.via) for each in lines] == [
        ("cpu_utilization", 1, "store"),
        ("cpu_utilization", 2, "store"),
    ]
    first, second = lines
    assert site.begin + 5 * MINUTE <= first.points[0].time
    assert first.points[-1].time <= site.begin + 30 * MINUTE
    assert site.begin + 40 * MINUTE <= second.points[0].time
    assert max(len(each.points) for each in lines) <= MOST_LINE_POINTS


async def test_what_a_run_logged_is_on_the_same_axis() -> None:
    site = Site()
    found = await site.timeline()
    (run,) = found.runs
    loss, other = (each for each in found.lines if each.run)
    assert (loss.name, loss.run, other.name) == ("loss", run.id, "x")
    assert len(loss.points) == MOST_LINE_POINTS
    assert (loss.points[0].value, loss.points[-1].value) == (1.0, 1 / 1000)


def test_a_long_history_keeps_its_first_and_its_last_value() -> None:
    begin = ManualClock().now()
    for count in (1, 2, MOST_LINE_POINTS, MOST_LINE_POINTS + 1, 5 * MOST_LINE_POINTS + 3):
        points = tuple(RunPoint(begin + at * MINUTE, at, float(at)) for at in range(count))
        found = thinned(points)
        assert len(found) == min(count, MOST_LINE_POINTS)
        assert (found[0].value, found[-1].value) == (0.0, count - 1.0)
        assert sorted({each.value for each in found}) == [each.value for each in found]


async def test_alerts_of_every_attempt_are_shown() -> None:
    site = Site()
    nodes = InMemoryNodeLooks()
    since = site.clock.now().timestamp() - 300
    idle = RunEvent(
        kind=RunEventKind.ALERT, time=since, lasts=True, name="gpu_idle", text="GPU 0 is idle"
    )
    nodes.happened = [NodeEvents(node="n1", began=since, since=since, events=(idle,))]

    class Nodes:
        looks = nodes

    site.parts["nodes"] = Nodes()
    found = await site.timeline()
    (event,) = found.events
    assert (event.kind, event.node, event.text, event.name, event.lasts) == (
        EventKind.ALERT,
        "n1",
        "GPU 0 is idle",
        "gpu_idle",
        True,
    )
    assert event.time == site.clock.now() - 5 * MINUTE
    assert [each for each in found.missing if "not kept" in each] == [
        "Alerts of attempt 1, and what it reported itself, are not kept, or not any more."
    ]


async def test_what_was_written_and_lost_is_on_the_axis() -> None:
    site = Site()
    begin = site.begin + 5 * MINUTE

    async def volumes(job: JobAttempt) -> LogVolume:
        if job.attempt.number > 1:
            raise Unavailable("The store does not answer.")
        loss = LogLoss(node="n1", time=begin.timestamp() + 60, text="4.1 KB missing (deleted)")
        return LogVolume(
            begin=begin.timestamp(),
            step_s=10.0,
            steps=(100.0, 0.0),
            losses=(loss,),
            missing="late.",
        )

    found = await timeline_service(site.foundation, site.spans, volumes).timeline(ALICE, "42")
    (line,) = (each for each in found.lines if each.name == "output")
    assert (line.unit, line.attempt, line.via, line.step_s) == ("bytes/s", 1, "stored logs", 10.0)
    assert [(each.time - begin, each.value) for each in line.points] == [
        (timedelta(seconds=5), 10.0),
        (timedelta(seconds=15), 0.0),
    ]
    (event,) = found.events
    assert (event.kind, event.time, event.node) == (EventKind.LOST_OUTPUT, begin + MINUTE, "n1")
    assert [each for each in found.missing if each.startswith("Output")] == [
        "Output of attempt 1: late.",
        "Output of attempt 2: The store does not answer.",
    ]


async def test_a_job_that_has_just_begun_is_not_called_forgotten() -> None:
    site = Site(metrics=NothingStore())
    found = await site.timeline()
    assert "Figures of attempt 2: nothing is measured yet." in found.missing
    assert "Figures of attempt 1: nothing was measured, or it is not kept any more." in (
        found.missing
    )


async def test_sessions_and_reads_are_for_the_owner_alone() -> None:
    site = Site()
    site.sessions = [
        SessionSpan(node="n1", command="", started=site.begin + 7 * MINUTE, ended=None)
    ]
    base = site.foundation
    await base.reads.note("carol", Standing.SHARED, site.job, ReadKind.READ)
    service = timeline_service(base, site.spans)
    own = await service.timeline(ALICE, "42")
    assert [(each.kind, each.lasts) for each in own.events] == [
        (EventKind.SESSION, True),
        (EventKind.READ, False),
    ]
    assert "carol" in own.events[1].text
    assert (await service.timeline(ADMIN, "42")).events == ()
    again = await service.timeline(ALICE, "42")
    assert any("root (system admin)" in each.text for each in again.events)


@pytest.mark.spec("AUTH-12")
async def test_anothers_timeline_is_not_there_and_nothing_is_asked() -> None:
    site = Site()
    with pytest.raises(NotFound):
        await site.timeline(BOB)
    assert (site.metrics.asked, site.trained.asked) == (0, [])


async def test_each_part_may_be_away_and_the_rest_is_shown() -> None:
    site = Site()
    site.metrics.reason = "connection refused"
    site.trained.reason = "it answered 503"
    site.sessions_away = True
    found = await site.timeline()
    assert len(found.phases) == 4
    assert found.lines == ()
    for words in (
        "Figures of attempt 1: the metric store does not answer",
        "MLflow does not answer: it answered 503",
        "etcd does not answer",
    ):
        assert any(words in each for each in found.missing), words


async def test_only_the_newest_attempts_are_read() -> None:
    site = Site()
    site.job = replace(
        site.job,
        attempt=2 * MOST_ATTEMPTS,
        attempts=tuple(
            site.attempt(number, number, number, number + 1, State.PREEMPTED)
            for number in range(1, 2 * MOST_ATTEMPTS)
        ),
    )
    found = await site.timeline()
    assert [each.number for each in found.attempts] == [
        *range(MOST_ATTEMPTS + 1, 2 * MOST_ATTEMPTS + 1)
    ]
    assert found.left_out == MOST_ATTEMPTS


async def test_a_job_that_waits_has_a_phase_and_no_figures() -> None:
    site = Site()
    site.job = allocation(
        42, "alice", "research", submitted=site.begin, started=None, nodes="", state=State.PENDING
    )
    site.trained.runs.clear()
    found = await site.timeline()
    assert [(each.kind, each.ended) for each in found.phases] == [(PhaseKind.WAITING, None)]
    assert (found.lines, site.metrics.asked) == ((), 0)


@pytest.mark.spec("AUDIT-3")
async def test_sensitive_work_is_shown_only_where_that_is_recorded() -> None:
    trail = RequiredTrail()
    claims = FixedClaims((node_claim("alice", "n1"),))
    site = Site(views=VAULT, audit=trail, claims=claims)
    site.job = replace(site.job, vcluster="vault")
    await site.timeline()
    assert trail.events[-1].act is AuditAct.METRIC_READ
    trail.is_away = True
    with pytest.raises(SensitiveAuditRequired):
        await site.timeline()


async def test_the_answer_is_a_message() -> None:
    found = await Site().timeline()
    message = message_of(found, timeline_pb2.Timeline)
    assert len(message.lines) == len(found.lines)
    assert message.phases[0].kind == "waiting"
