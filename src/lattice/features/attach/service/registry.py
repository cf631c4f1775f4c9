"""The slot and the record of a session: taken before it begins, released after it ends.

While no client is connected, the slot is kept for 30 s and the record for `RESUME_S`. Then the
session is over. A server that stops leaves that to the others (`RecordCleanup`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from lattice.access.actor import Actor
from lattice.access.journal import ActJournal
from lattice.access.limits import CallerLimits, OpenSlot, Sessions
from lattice.access.locks import locked_text
from lattice.access.sensitive_acts import SensitiveActs
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, NotFound, PermissionRefused, Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.audit import AuditAct
from lattice.domain.lock import Lock, Locks, NoLocks
from lattice.domain.terminal import EndCause
from lattice.features.attach.model import RESUME_S, EndReason, Start
from lattice.features.attach.service.recorded import UNRECORDED
from lattice.features.attach.service.recordings import RecordingEntry
from lattice.features.attach.service.records import SessionRecord, SessionRecords
from lattice.features.attach.service.tap import SessionTap
from lattice.features.attach.sessions import AttachSession

_log = logging.getLogger(__name__)

_MOST_LEFT = 10_000
REASONS = {
    EndCause.EXITED: EndReason.EXITED,
    EndCause.SIGNALLED: EndReason.EXITED,
    EndCause.CLIENT_LOST: EndReason.CLIENT_LOST,
    EndCause.JOB_ENDED: EndReason.JOB_ENDED,
    EndCause.FAILED: EndReason.FAILED,
}


@dataclass(eq=False, slots=True)
class SessionEntry:
    """One connection's hold on a session."""

    actor: Actor
    record: SessionRecord
    slot: OpenSlot
    passage: SessionTap

    @property
    def session(self) -> str:
        return self.record.session.id

    @property
    def node(self) -> str:
        return self.record.session.node


@dataclass(eq=False, slots=True)
class _Left:
    """A session without a client, which may come back to this server."""

    sequence: int
    """The number of the connection that was lost."""
    passage: SessionTap
    ending: asyncio.Task[None]


class SessionRegistry:
    """Takes and releases slots and records."""

    def __init__(
        self,
        limits: CallerLimits,
        records: SessionRecords,
        clock: Clock,
        journal: ActJournal,
        acts: SensitiveActs | None = None,
        *,
        locks: Locks | None = None,
        on_recorded_end: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._acts = acts or SensitiveActs()
        self._on_recorded_end = on_recorded_end
        self._locks = locks or NoLocks()
        self._limits = limits
        self._records = records
        self._clock = clock
        self._journal = journal
        self._sleep = sleep
        self._left: dict[str, _Left] = {}

    async def begin(
        self,
        actor: Actor,
        job: Allocation,
        node: str,
        start: Start,
        recording: RecordingEntry | None = None,
    ) -> SessionEntry:
        """Take a slot, then write the record. Of sensitive work, the audit log has it before.

        Raises `PermissionRefused`, `RateLimited`, `Unavailable`, `UsageError`, `Conflict`.
        """
        self._refuse_locked(actor, node, start.session)
        session = AttachSession(
            id=start.session,
            user=job.user,
            subject=actor.sub,
            allocation=job.ref,
            attempt=job.attempt,
            node=node,
            command=start.command,
            terminal=bool(start.terminal),
            started=self._clock.now(),
        )
        detail = f"session {session.id} on {node}: {' '.join(session.command) or 'login shell'}"
        audited = await self._acts.require(actor, AuditAct.ATTACH_START, job, detail, node=node)
        try:
            if audited and recording is None:
                raise PermissionRefused(UNRECORDED)
            entry = await self._taken(
                actor, start.session, lambda: self._records.begin(session, recording)
            )
        except LatticeError:
            if audited:
                # The entry before says that it began.
                self._acts.not_done(actor, AuditAct.ATTACH_START, job, detail, node=node)
            raise
        if not audited:
            self._journal.acted(
                "attach", job.ref, actor.sub, detail, owner=job.user, tenant=job.tenant
            )
        return entry

    async def resume(self, actor: Actor, job: Allocation, session: str) -> SessionEntry:
        """Take both for a session that continues. Raises `NotFound` if it is over."""
        self._refuse_locked(actor, "", session)
        entry = await self._taken(actor, session, lambda: self._resumed(actor, job, session))
        left = self._left.pop(session, None)
        if left is not None:
            left.ending.cancel()
        if left is not None and left.sequence == entry.record.sequence - 1:
            entry.passage = left.passage
        elif (owed := entry.record.owed) is not None:
            ago_s = (self._clock.now() - owed).total_seconds()
            entry.passage.owed_s = self._clock.monotonic() - ago_s
        return entry

    @property
    def knows_state(self) -> bool:
        """False while the agreed state has not answered this server for some seconds."""
        return self._locks.current

    def lock(self, actor: Actor, node: str, session: str) -> Lock | None:
        """The lock that covers this session now, or None."""
        by_person = self._locks.of_user(actor.sub, actor.user)
        return by_person or self._locks.of_node(node) or self._locks.of_session(session)

    def _refuse_locked(self, actor: Actor, node: str, session: str) -> None:
        if (lock := self.lock(actor, node, session)) is not None:
            raise PermissionRefused(locked_text(lock), hint="The job runs on.")

    async def _resumed(self, actor: Actor, job: Allocation, session: str) -> SessionRecord:
        record = await self._records.resume(session, job.user, actor.sub)
        if not _is_of(record.session.allocation, job):
            raise NotFound("This session is over.", hint="Begin a new one.")
        return record

    async def _taken(
        self, actor: Actor, session: str, write: Callable[[], Awaitable[SessionRecord]]
    ) -> SessionEntry:
        slot: OpenSlot | None = None
        try:
            slot = await self._limits.open(actor.sub, Sessions.ATTACH, session)
            return SessionEntry(actor, await write(), slot, SessionTap(self._clock))
        except LatticeError as problem:
            if slot is not None:
                await slot.release()
            if isinstance(problem, Unavailable):
                raise _unrecorded(problem) from None
            raise

    async def end(self, entry: SessionEntry, reason: EndReason) -> None:
        """Release the slot and record the end; `RecordCleanup` repeats a failed write."""
        await entry.slot.release()
        exit_ = entry.passage.exit
        code = exit_.code if exit_ is not None else None
        try:
            over = await self._records.end(entry.record, reason, code)
        except Unavailable as problem:
            # `RecordCleanup` ends it: no server serves the session that the record names.
            _log.warning("the end of session %s is not written: %s", entry.session, problem.message)
            return
        if over is not None and entry.record.recorded:
            # Its end is in the audit log when its recording is closed.
            self._on_recorded_end()
        elif over is not None:
            detail = (
                f"session {over.id} on {over.node}: {reason.value}, "
                f"{entry.passage.typed_bytes} bytes in, {entry.passage.shown_bytes} out"
            )
            self._journal.acted(
                "attach end", over.allocation, over.subject, detail, owner=over.user
            )

    async def leave(self, entry: SessionEntry) -> None:
        """The client is gone and may come back, to this server or another."""
        await entry.slot.client_lost()
        with suppress(Unavailable):
            entry.record = await self._records.left(entry.record, self._owed(entry.passage))
        before = self._left.pop(entry.session, None)
        if before is not None:
            before.ending.cancel()
        if len(self._left) < _MOST_LEFT:
            ending = asyncio.create_task(self._ending(entry), name="attach left")
            self._left[entry.session] = _Left(entry.record.sequence, entry.passage, ending)

    def _owed(self, passage: SessionTap) -> datetime | None:
        if passage.owed_s is None:
            return None
        ago_s = self._clock.monotonic() - passage.owed_s
        return self._clock.now() - timedelta(seconds=ago_s)

    async def _ending(self, entry: SessionEntry) -> None:
        try:
            await self._sleep(RESUME_S)
            exit_ = entry.passage.exit
            await self.end(entry, REASONS[exit_.cause] if exit_ else EndReason.CLIENT_LOST)
        finally:
            left = self._left.get(entry.session)
            if left is not None and left.ending is asyncio.current_task():
                del self._left[entry.session]

    async def aclose(self) -> None:
        """Stop waiting for clients; other servers end the records."""
        tasks = [each.ending for each in self._left.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _unrecorded(problem: Unavailable) -> Unavailable:
    return Unavailable(
        "QuorumUnavailable: cannot record who attaches",
        hint=f"{problem.message} Try again in a minute.",
    )


def _is_of(written: str, job: Allocation) -> bool:
    """True if a record's reference is this job's; either may lack the time of the submit."""
    name, _, submitted = written.partition("@")
    return name == job.id and (not submitted or job.ref in {written, job.id})
