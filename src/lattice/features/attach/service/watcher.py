"""Watches the job, the node and the caller while a session is open.

The session calls `check` about once a second. It returns what is new, each thing once, and last why
the session has to end. It waits only to check the caller's token, once a minute. `farewell` waits
up to 3 s while Slurm is asked how the job ended, before the shell's end is sent.

A node is lost when no server holds its link and it owed an answer for `NODE_LOST_S`. The client
pings every 5 s, so that is within 20 s of the loss. If a carrier breaks while the node is linked,
the client only reconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TypeAlias

from lattice.access.actor import Actor
from lattice.access.locks import locked_text
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, LoginRequired, Unavailable
from lattice.base.moment import age
from lattice.domain.allocation import Allocation, State
from lattice.domain.lock import Lock
from lattice.domain.scheduler import LiveCluster, Scheduler
from lattice.domain.stream import NodeStreams
from lattice.features.attach.model import (
    NODE_LOST_TEXT,
    PREEMPTED_TEXT,
    Ended,
    EndReason,
    Notice,
    NoticeKind,
)
from lattice.features.attach.service.node_choice import being_taken_off, ends_at
from lattice.features.attach.service.tap import SessionTap
from lattice.wire.websocket import SocketCaller

CHECK_EVERY_S = 1.0
NODE_SILENT_S = 10.0
NODE_LOST_S = 12.0
IDLE_S = 30 * 60.0
WALLTIME_S = 5 * 60.0
TOKEN_WARNING_S = 60.0
RECHECK_EVERY_S = 60.0
ALONE_S = 30.0
"""How long a recorded session goes on while the agreed state does not answer its server.

Other servers end its record `RESUME_S` after they took that server for dead, and then let another
session begin. So this one ends before, and there is one at a time.
"""
JOB_END_S = 10.0
"""How long the shell may outlive its job before the server ends the session."""
_FAREWELL_S = 3.0
_STILL = frozenset({State.SUSPENDED, State.STOPPED})

SessionMessage: TypeAlias = Notice | Ended


class SessionWatch:
    """The watcher of one session."""

    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        scheduler: Scheduler,
        nodes: NodeStreams,
        clock: Clock,
        standing: SocketCaller[Actor],
        allocation: Allocation,
        node: str,
        passage: SessionTap,
        lock: Callable[[], Lock | None] = lambda: None,
        *,
        knows_state: Callable[[], bool] = lambda: True,
    ) -> None:
        """`lock` returns the lock that covers this session now, or None.

        `knows_state` is for recorded sessions: False while the agreed state does not answer.
        """
        self._lock = lock
        self._knows_state = knows_state
        self._known_s = clock.monotonic()
        self._scheduler = scheduler
        self._nodes = nodes
        self._clock = clock
        self._standing = standing
        self._job = allocation
        self._node = node
        self._passage = passage
        self._sent: set[NoticeKind] = set()
        self._over_s: float | None = None
        self._over_text = ""
        self._checked_s = clock.monotonic()
        self._found_at = clock.now()

    async def check(self) -> tuple[SessionMessage, ...]:
        """What is new; nothing follows an `Ended`."""
        if (lock := self._lock()) is not None:
            return (Ended(reason=EndReason.REFUSED, words=locked_text(lock)),)
        messages: list[SessionMessage] = []
        for step in (
            self._check_alone(),
            self._check_job(),
            self._check_node(),
            self._check_activity(),
        ):
            messages.extend(step)
            if messages and isinstance(messages[-1], Ended):
                return tuple(messages)
        messages.extend(await self._check_token())
        return tuple(messages)

    async def farewell(self) -> tuple[SessionMessage, ...]:
        """How the job ended, if the shell ended with it; empty if the job continues."""
        until_s = self._clock.monotonic() + _FAREWELL_S
        try:
            async with asyncio.timeout(_FAREWELL_S):
                while self._clock.monotonic() < until_s:
                    await self._scheduler.fresh(users={self._job.user})
                    messages = tuple(self._check_job())
                    if any(isinstance(each, Ended) for each in messages) or self._over_text:
                        return messages
                    await asyncio.sleep(0.2)
        except (TimeoutError, Unavailable):
            pass
        return ()

    def _check_alone(self) -> Iterable[SessionMessage]:
        now_s = self._clock.monotonic()
        if self._knows_state():
            self._known_s = now_s
        elif now_s - self._known_s >= ALONE_S:
            text = f"recording impossible: the agreed state has not answered for {ALONE_S:.0f} s"
            yield Ended(reason=EndReason.UNRECORDED, words=text)

    # The job

    def _check_job(self) -> Iterable[SessionMessage]:
        try:
            reading = self._scheduler.live()
        except Unavailable:
            return
        if not reading.source.ok:
            age_s = reading.source.age_s or 0.0
            yield from self._once(
                NoticeKind.STATE_OLD, f"Slurm does not answer; job state as of {age(age_s)} ago"
            )
            return
        self._sent.discard(NoticeKind.STATE_OLD)
        job = self._now(reading.cluster)
        if job is None and reading.cluster.read_at < self._found_at:
            # A new job was found in slurmdbd; this list of slurmctld's is older than the job.
            return
        if job is None or job.state.finished or self._runs_anew(job):
            yield from self._job_over(job)
            return
        if being_taken_off(job):
            yield from self._once(
                NoticeKind.PREEMPTED,
                f"Slurm takes {job.id} off its nodes; this session ends with it",
            )
        if (job.state in _STILL) != (self._job.state in _STILL):
            still = job.state in _STILL
            kind = NoticeKind.SUSPENDED if still else NoticeKind.RESUMED
            what = "suspended: its processes stand still" if still else "resumed"
            yield Notice(kind=kind, words=f"job {job.id} is {what}")
        self._job = job
        yield from self._walltime(job)

    def _runs_anew(self, job: Allocation) -> bool:
        return job.state.waiting or job.started != self._job.started

    def _now(self, cluster: LiveCluster) -> Allocation | None:
        for each in cluster.of_job(self._job.job_id):
            if each.user == self._job.user and (
                each.first_submitted is None
                or self._job.first_submitted is None
                or each.first_submitted == self._job.first_submitted
            ):
                return each
        return None

    def _job_over(self, job: Allocation | None) -> Iterable[SessionMessage]:
        ident = self._job.id
        if job is not None and (not job.state.finished or job.state is State.PREEMPTED):
            preempted = job.state is State.PREEMPTED or NoticeKind.PREEMPTED in self._sent
            yield Ended(
                reason=EndReason.PREEMPTED if preempted else EndReason.REQUEUED,
                words=PREEMPTED_TEXT.format(id=ident),
            )
            return
        now_s = self._clock.monotonic()
        if self._over_s is None:
            self._over_s = now_s
            self._over_text = _end_text(ident, job)
            yield Notice(kind=NoticeKind.JOB_ENDED, words=self._over_text)
        elif now_s - self._over_s >= JOB_END_S:
            yield Ended(reason=EndReason.JOB_ENDED, words=self._over_text)

    def _walltime(self, job: Allocation) -> Iterable[SessionMessage]:
        ends = ends_at(job)
        if ends is None or job.state in _STILL:
            return
        left = ends - self._clock.now()
        if left <= timedelta(seconds=WALLTIME_S):
            text = f"{max(0, round(left.total_seconds() / 60))} min of the job's time are left"
            yield from self._once(NoticeKind.WALLTIME, text)
        else:
            self._sent.discard(NoticeKind.WALLTIME)

    # The node

    def _check_node(self) -> Iterable[SessionMessage]:
        owed_s = self._passage.owed_s
        silent_s = 0.0 if owed_s is None else self._clock.monotonic() - owed_s
        if silent_s >= NODE_LOST_S and not self._nodes.linked_to(self._node):
            yield Ended(reason=EndReason.NODE_LOST, words=NODE_LOST_TEXT)
        elif silent_s >= NODE_SILENT_S:
            yield from self._once(
                NoticeKind.NODE_SILENT, f"node {self._node} not answering since {silent_s:.0f} s"
            )
        elif NoticeKind.NODE_SILENT in self._sent:
            self._sent.discard(NoticeKind.NODE_SILENT)
            yield Notice(kind=NoticeKind.NODE_BACK, words=f"node {self._node} answers again")

    # The person

    def _check_activity(self) -> Iterable[SessionMessage]:
        idle_s = self._clock.monotonic() - self._passage.active_s
        if idle_s >= IDLE_S:
            text = f"nothing was typed or shown for {age(idle_s)}; the session stays open"
            yield from self._once(NoticeKind.IDLE, text)
        else:
            self._sent.discard(NoticeKind.IDLE)

    async def _check_token(self) -> Iterable[SessionMessage]:
        left_s = self._token_left_s()
        if left_s is not None and left_s <= 0:
            return (_token_over(),)
        now_s = self._clock.monotonic()
        if now_s - self._checked_s >= RECHECK_EVERY_S:
            self._checked_s = now_s
            try:
                await self._standing.check()
            except LoginRequired:
                return (_token_over(),)
            except Unavailable:
                return ()
            except LatticeError as error:
                return (Ended(reason=EndReason.REFUSED, words=error.message),)
        if left_s is not None and left_s <= TOKEN_WARNING_S:
            text = f"your sign-in ends in {left_s:.0f} s, and this session with it"
            return tuple(self._once(NoticeKind.TOKEN_EXPIRING, text))
        self._sent.discard(NoticeKind.TOKEN_EXPIRING)
        return ()

    async def renew(self, token: str) -> None:
        """Use another token of the same caller. An invalid one changes nothing."""
        with suppress(LatticeError):
            await self._standing.renew(token, _same)

    def _token_left_s(self) -> float | None:
        expires = self._standing.caller.expires
        return None if expires is None else (expires - self._clock.now()).total_seconds()

    def _once(self, kind: NoticeKind, text: str) -> Iterable[SessionMessage]:
        if kind not in self._sent:
            self._sent.add(kind)
            yield Notice(kind=kind, words=text)


def _same(one: Actor, other: Actor) -> bool:
    return (one.sub, one.user) == (other.sub, other.user)


def _token_over() -> Ended:
    return Ended(reason=EndReason.TOKEN_EXPIRED, words="your sign-in has ended")


def _end_text(ident: str, job: Allocation | None) -> str:
    if job is None:
        return f"job {ident} ended"
    code = f" {job.exit_code}" if job.exit_code is not None else ""
    at = f" at {job.ended:%H:%M:%S} UTC" if job.ended is not None else ""
    return f"job {ident} ended: {job.state.value.upper()}{code}{at}"
