"""What is said while a session goes on, and when it has to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lattice.access.actor import Actor
from lattice.base.errors import LoginRequired, PermissionRefused, Unavailable
from lattice.domain.allocation import Allocation, ExitCode, State
from lattice.domain.lock import Lock, LockKind
from lattice.domain.pipe import Pipe
from lattice.features.attach.model import RESUME_S, Ended, EndReason, Notice, NoticeKind
from lattice.features.attach.service.tap import SessionTap
from lattice.features.attach.service.watcher import ALONE_S, SessionMessage, SessionWatch
from lattice.features.locks.service import KNOWN_FOR_S
from lattice.wire.websocket import SocketCaller
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock

JOB = 1
DATA = b"\x01" + bytes(16) + b"x"


class Links:
    """Of the port `NodeStreams` only this is asked."""

    def __init__(self) -> None:
        self.linked = True

    def linked_to(self, node: str) -> str:
        assert node == "n1"
        return "r1" if self.linked else ""


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        started = self.clock.now() - timedelta(hours=1)
        job = allocation(JOB, "alice", "research", submitted=started, started=started)
        self.scheduler.allocations = [job]
        self.links = Links()
        self.passage = SessionTap(self.clock)
        self.asked = 0
        self.error: Exception | None = None
        self.lock: Lock | None = None
        self.knows_state = True
        self.next_actor = Actor(sub="alice-1", user="alice")
        self.standing = SocketCaller(
            Actor(sub="alice-1", user="alice"), self._authorise, "Bearer x"
        )
        self.begin(job)

    def begin(self, job: Allocation) -> None:
        """Open a session of this job now."""
        self.watch = SessionWatch(
            self.scheduler,
            self.links,  # type: ignore[arg-type]
            self.clock,
            self.standing,
            job,
            "n1",
            self.passage,
            lambda: self.lock,
            knows_state=lambda: self.knows_state,
        )

    async def _authorise(self, authorization: str) -> Actor:
        assert authorization.startswith("Bearer ")
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.next_actor

    def change(self, **facts: Any) -> None:
        self.scheduler.allocations = [replace(each, **facts) for each in self.scheduler.allocations]

    async def after(self, seconds: float, *, busy: bool = True) -> list[SessionMessage]:
        """What is said within this time; both ends ping every five seconds if `busy`."""
        told: list[SessionMessage] = []
        for second in range(int(seconds)):
            self.clock.advance(1)
            if busy and second % 5 == 0:
                await self.passage.typed(Pipe().ping())
                await self.passage.shown(Pipe().ping())
            told += await self.watch.check()
            if told and isinstance(told[-1], Ended):
                break
        return told


@pytest.fixture
def scene() -> Scene:
    return Scene()


def kinds(told: list[SessionMessage]) -> list[NoticeKind | EndReason]:
    return [each.kind if isinstance(each, Notice) else each.reason for each in told]


async def test_nothing_is_said_of_a_job_that_runs(scene: Scene) -> None:
    assert await scene.after(600) == []


@pytest.mark.spec("AUDIT-4")
@pytest.mark.threat(3, "second-terminal")
async def test_a_recorded_session_ends_at_a_server_that_is_cut_off(scene: Scene) -> None:
    """Before other servers let another one begin."""
    await scene.after(100)
    scene.knows_state = False
    assert await scene.after(29) == []
    (ended,) = await scene.after(3)
    assert isinstance(ended, Ended)
    assert ended.reason is EndReason.UNRECORDED
    assert ended.words == "recording impossible: the agreed state has not answered for 30 s"
    assert KNOWN_FOR_S + ALONE_S < RESUME_S


async def test_a_recorded_session_goes_on_when_the_state_answers_again(scene: Scene) -> None:
    for _ in range(3):
        scene.knows_state = False
        assert await scene.after(29) == []
        scene.knows_state = True
        assert await scene.after(2) == []


async def test_a_server_that_stood_still_ends_a_recorded_session_at_once(scene: Scene) -> None:
    await scene.after(5)
    scene.clock.advance(100)
    scene.knows_state = False
    assert kinds(await scene.after(1)) == [EndReason.UNRECORDED]


@pytest.mark.spec("ATTACH-4")
async def test_idle_is_a_word_and_never_an_end(scene: Scene) -> None:
    told = await scene.after(4 * 3600)
    assert kinds(told) == [NoticeKind.IDLE]
    await scene.passage.typed(DATA)
    assert await scene.after(1799) == []
    assert kinds(await scene.after(2)) == [NoticeKind.IDLE]


async def test_pings_are_no_activity(scene: Scene) -> None:
    begun = scene.passage.active_s
    await scene.after(100)
    assert scene.passage.active_s == begun
    await scene.passage.shown(DATA)
    assert scene.passage.active_s > begun
    assert (scene.passage.typed_bytes, scene.passage.shown_bytes) == (0, 1)


@pytest.mark.spec("ATTACH-5")
async def test_a_node_that_lost_power_is_told_within_twenty_seconds(scene: Scene) -> None:
    await scene.after(11)
    lost_s = scene.clock.monotonic()
    told: list[SessionMessage] = []
    while not (told and isinstance(told[-1], Ended)):
        scene.clock.advance(1)
        silent_s = scene.clock.monotonic() - lost_s
        if silent_s % 5 == 0:
            await scene.passage.typed(Pipe().ping())
        # The link's own silence is noticed after fifteen seconds.
        scene.links.linked = silent_s < 16
        told += await scene.watch.check()
        assert silent_s <= 20
    assert kinds(told) == [NoticeKind.NODE_SILENT, EndReason.NODE_LOST]
    assert told[-1] == Ended(
        reason=EndReason.NODE_LOST, words="connection to node lost — attach session ended"
    )


async def test_a_node_whose_server_died_is_not_lost_while_it_answers(scene: Scene) -> None:
    scene.links.linked = False
    assert await scene.after(300) == []


async def test_a_node_that_answers_again_is_said_too(scene: Scene) -> None:
    await scene.passage.shown(Pipe().ping())
    scene.clock.advance(1)
    await scene.passage.typed(Pipe().ping())
    assert kinds(await scene.after(16, busy=False)) == [NoticeKind.NODE_SILENT]
    await scene.passage.shown(Pipe().ping())
    assert kinds(await scene.after(1, busy=False)) == [NoticeKind.NODE_BACK]


async def test_a_silent_client_does_not_make_a_silent_node(scene: Scene) -> None:
    assert await scene.after(300, busy=False) == []


async def test_suspended_and_resumed(scene: Scene) -> None:
    scene.change(state=State.SUSPENDED)
    assert kinds(await scene.after(3)) == [NoticeKind.SUSPENDED]
    scene.change(state=State.RUNNING)
    assert kinds(await scene.after(3)) == [NoticeKind.RESUMED]


@pytest.mark.spec("ATTACH-6")
@pytest.mark.parametrize(
    ("after", "announced", "reason"),
    [
        ({"state": State.PENDING, "started": None}, True, EndReason.PREEMPTED),
        ({"state": State.PREEMPTED}, False, EndReason.PREEMPTED),
        ({"state": State.REQUEUED}, False, EndReason.REQUEUED),
        ({"state": State.PENDING, "started": None}, False, EndReason.REQUEUED),
    ],
)
async def test_what_is_taken_off_its_nodes_ends_with_the_words(
    scene: Scene, after: dict[str, Any], announced: bool, reason: EndReason
) -> None:
    if announced:
        scene.change(preempted_at=scene.clock.now())
        assert kinds(await scene.after(5)) == [NoticeKind.PREEMPTED]
    scene.change(**after)
    (ended,) = await scene.after(2)
    assert ended == Ended(
        reason=reason,
        words="[lattice] Allocation preempted. Session suspended. Use 'lattice attach 1' to "
        "reconnect after rescheduling.",
    )


@pytest.mark.spec("ATTACH-6")
async def test_a_job_that_runs_anew_is_not_the_one_that_was_entered(scene: Scene) -> None:
    scene.change(started=scene.clock.now())
    (ended,) = await scene.after(2)
    assert isinstance(ended, Ended)
    assert ended.reason is EndReason.REQUEUED


async def test_the_end_of_the_job_is_said_and_then_waited_for(scene: Scene) -> None:
    scene.change(state=State.FAILED, ended=scene.clock.now(), exit_code=ExitCode(3))
    told = await scene.after(30)
    assert kinds(told) == [NoticeKind.JOB_ENDED, EndReason.JOB_ENDED]
    at = scene.scheduler.allocations[0].ended
    assert at is not None
    assert told[1] == Ended(
        reason=EndReason.JOB_ENDED, words=f"job 1 ended: FAILED 3:0 at {at:%H:%M:%S} UTC"
    )


@pytest.mark.spec("ATTACH-6")
async def test_a_list_older_than_the_session_is_no_end(scene: Scene) -> None:
    """slurmdbd may have a new job some seconds before the list of slurmctld is read again."""
    jobs, scene.scheduler.allocations = scene.scheduler.allocations, []
    scene.scheduler.read()
    scene.scheduler.down = True
    scene.clock.advance(1)
    scene.begin(jobs[0])
    assert await scene.after(3) == []
    scene.scheduler.allocations, scene.scheduler.down = jobs, False
    assert await scene.after(3) == []
    scene.change(state=State.PENDING, started=None)
    assert kinds(list(await scene.watch.farewell())) == [EndReason.REQUEUED]


async def test_a_job_that_slurm_forgot_is_over(scene: Scene) -> None:
    scene.scheduler.allocations = []
    assert kinds(await scene.after(30)) == [NoticeKind.JOB_ENDED, EndReason.JOB_ENDED]


async def test_while_slurm_is_silent_nothing_is_concluded(scene: Scene) -> None:
    await scene.watch.check()
    scene.scheduler.down = True
    scene.scheduler.allocations = []
    told = await scene.after(60)
    assert kinds(told) == [NoticeKind.STATE_OLD]
    assert isinstance(told[0], Notice)
    assert "job state as of" in told[0].words


async def test_the_end_of_its_time_is_announced_once(scene: Scene) -> None:
    scene.change(time_limit_s=3600 + 400)
    told = await scene.after(390)
    assert kinds(told) == [NoticeKind.WALLTIME]
    assert isinstance(told[0], Notice)
    assert told[0].words == "5 min of the job's time are left"


async def test_a_token_is_looked_at_every_minute(scene: Scene) -> None:
    assert await scene.after(185) == []
    assert scene.asked == 3
    scene.error = Unavailable("the provider is away")
    assert await scene.after(61) == []
    scene.error = LoginRequired("no")
    assert kinds(await scene.after(61)) == [EndReason.TOKEN_EXPIRED]


async def test_who_may_no_longer_attach_is_ended(scene: Scene) -> None:
    scene.error = PermissionRefused("Your role does not allow this.")
    assert kinds(await scene.after(61)) == [EndReason.REFUSED]


@pytest.mark.spec("AUTH-13")
async def test_a_lock_ends_the_session_and_says_why(scene: Scene) -> None:
    assert await scene.after(3) == []
    scene.lock = Lock(
        kind=LockKind.NODE, target="n1", reason="forensics", by="olga", since=scene.clock.now()
    )
    assert await scene.after(1) == [
        Ended(reason=EndReason.REFUSED, words="Node n1 is locked: forensics.")
    ]


async def test_a_token_that_runs_out_is_announced_a_minute_before(scene: Scene) -> None:
    expiring = replace(scene.standing.caller, expires=scene.clock.now() + timedelta(seconds=100))
    scene.standing.caller = scene.next_actor = expiring
    told = await scene.after(200)
    assert kinds(told) == [NoticeKind.TOKEN_EXPIRING, EndReason.TOKEN_EXPIRED]


@pytest.mark.parametrize(
    ("fresh", "kept"),
    [
        (lambda was: was, True),
        (lambda was: replace(was, sub="bob-1"), False),
        (lambda was: replace(was, user="bob"), False),
    ],
)
async def test_a_newer_token_of_the_same_caller_goes_on(
    scene: Scene, fresh: Callable[[Actor], Actor], kept: bool
) -> None:
    soon = scene.clock.now() + timedelta(seconds=100)
    scene.standing.caller = replace(scene.standing.caller, expires=soon)
    later = soon + timedelta(hours=1)
    scene.next_actor = replace(fresh(scene.standing.caller), expires=later)
    await scene.watch.renew("newer")
    assert (scene.standing.caller.expires == later) is kept
    if not kept:
        scene.error = LoginRequired("what was shown first no longer holds")
    told = await scene.after(120)
    assert (EndReason.TOKEN_EXPIRED in kinds(told)) is not kept


async def test_a_token_that_does_not_hold_changes_nothing(scene: Scene) -> None:
    scene.error = LoginRequired("no")
    before = scene.standing.caller
    await scene.watch.renew("forged")
    assert scene.standing.caller is before
