"""The records of sessions in the state store: one key for each session.

Keys::

    attach/sessions/open/USER/SESSION   while it is open, with the server that serves it
    attach/sessions/past/USER/SESSION   after its end, for 30 days or as configured

`recordings` has more keys for sensitive work, which are written in the same commits.

A session begins only after its record is written. Every commit expects the revision that was read.
So two servers that serve a session in turn can't undo each other's changes. Each new connection of
a session raises its `sequence`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.permission import Permission
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, NotFound, Unavailable, UsageError
from lattice.domain.state import Change, Delete, Entry, Expect, Put, StateStore
from lattice.features.attach.model import RESUME_S, EndReason
from lattice.features.attach.service.recordings import (
    RecordingEntry,
    alone_key,
    beginning,
    conflict,
)
from lattice.features.attach.sessions import AttachSession, AttachSessions

_log = logging.getLogger(__name__)

OPEN = "attach/sessions/open/"
PAST = "attach/sessions/past/"
RETENTION = timedelta(days=30)
MOST_PAST = 20_000
MOST_LISTED = 500
_SWEEP_EVERY_S = 3600.0
_SWEPT_AT_ONCE = 50
_MOST_TRIES = 5
_CLEANUP_EVERY_S = 20.0
_GRACE_S = 15.0
"""Added to `RESUME_S`: the server of a session writes first."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A record: the session, and the server that serves it."""

    session: AttachSession
    sequence: int
    """The number of its connections so far."""
    replica: str
    left: datetime | None = None
    """Since when no client is connected."""
    owed: datetime | None = None
    """When the client left: since when the node owed an answer."""
    revision: int = 0
    recorded: bool = False
    """Whether it is the one recorded session of its allocation."""


class SessionRecords:
    """Reads and writes records. Every call raises `Unavailable` while the store is away."""

    def __init__(
        self, state: StateStore, clock: Clock, replica: str, retention: timedelta = RETENTION
    ) -> None:
        self._state = state
        self._clock = clock
        self._replica = replica
        self._retention = retention
        self._past = 0
        self._swept_s = float("-inf")

    async def begin(
        self, session: AttachSession, recording: RecordingEntry | None = None
    ) -> SessionRecord:
        """Write a new record, with that of its recording.

        Raises `UsageError` if that session exists, `Conflict` if another one is recorded.
        """
        record = SessionRecord(session, 1, self._replica, recorded=recording is not None)
        key = _key(OPEN, session)
        absent = [Expect(key, 0), Expect(_key(PAST, session), 0)]
        changes: list[Change] = [Put(key, _written(record))]
        if recording is not None:
            more_absent, more = beginning(recording)
            absent += more_absent
            changes += more
        revision = await self._state.commit(absent, changes)
        if revision is None:
            await self._refuse_second(session, recording)
            # The same request may come again after its answer was lost.
            entry = await self._state.get(key)
            there = record_of(entry) if entry else None
            if there is None or replace(there.session, started=session.started) != session:
                raise UsageError("A session of that name exists.", hint="Draw another at random.")
            return await self._go_on(there)
        return replace(record, revision=revision)

    async def _refuse_second(
        self, session: AttachSession, recording: RecordingEntry | None
    ) -> None:
        if recording is None:
            return
        held = await self._state.get(alone_key(recording.allocation))
        problem = conflict(held, session.id) if held is not None else None
        if problem is not None:
            raise problem

    async def ended(self, user: str, session: str) -> AttachSession | None:
        """The session, if its end is recorded."""
        entry = await self._state.get(f"{PAST}{_word(user)}/{session}")
        found = record_of(entry) if entry is not None else None
        return found.session if found is not None else None

    async def resume(self, session: str, user: str, subject: str) -> SessionRecord:
        """Continue a session over a new connection. Raises `NotFound` if it is over."""
        for _ in range(_MOST_TRIES):
            entry = await self._state.get(f"{OPEN}{_word(user)}/{session}")
            there = record_of(entry) if entry else None
            if there is None or there.session.subject != subject:
                raise NotFound("This session is over.", hint="Begin a new one.")
            with suppress(_Raced):
                return await self._go_on(there)
        raise Unavailable("Too many resume this session at once.", hint="Try again.")

    async def left(self, record: SessionRecord, owed: datetime | None = None) -> SessionRecord:
        """Record that the client is gone and may come back."""
        return await self._change(replace(record, left=self._clock.now(), owed=owed))

    async def end(
        self, record: SessionRecord, reason: EndReason, exit_code: int | None = None
    ) -> AttachSession | None:
        """Record the end; None if it continued elsewhere or had ended before."""
        over = replace(record.session, ended=self._clock.now(), reason=reason, exit_code=exit_code)
        open_key, past_key = _key(OPEN, over), _key(PAST, over)
        changes: list[Change] = [
            Delete(open_key),
            Put(past_key, _written(replace(record, session=over))),
        ]
        if record.recorded:
            changes.append(Delete(alone_key(over.allocation)))
        done = await self._state.commit([Expect(open_key, record.revision)], changes)
        if done is None:
            return None
        self._past += 1
        with suppress(Unavailable):
            await self._sweep()
        return over

    async def all_open(self) -> tuple[SessionRecord, ...]:
        """The open sessions of all users."""
        return _records((await self._state.list(OPEN)).entries)

    async def of(
        self, user: str, *, allocation: str = "", only_open: bool = False
    ) -> tuple[tuple[AttachSession, ...], bool]:
        """One user's sessions, newest first, and whether there are more."""
        if not user:
            return (), False
        found = list(_records((await self._state.list(f"{OPEN}{_word(user)}/")).entries))
        if not only_open:
            found += _records((await self._state.list(f"{PAST}{_word(user)}/")).entries)
        oldest = self._clock.now() - self._retention
        sessions = [
            each.session
            for each in found
            if allocation in {"", each.session.allocation}
            and (each.session.ended is None or each.session.ended > oldest)
        ]
        sessions.sort(key=lambda each: each.started, reverse=True)
        return tuple(sessions[:MOST_LISTED]), len(sessions) > MOST_LISTED

    async def _go_on(self, there: SessionRecord) -> SessionRecord:
        # What the node owed is this connection's to find out: it may have answered by the next one.
        written = await self._change(
            replace(there, sequence=there.sequence + 1, replica=self._replica, left=None, owed=None)
        )
        return replace(written, owed=there.owed)

    async def _change(self, record: SessionRecord) -> SessionRecord:
        key = _key(OPEN, record.session)
        put = Put(key, _written(record))
        revision = await self._state.commit([Expect(key, record.revision)], [put])
        if revision is None:
            raise _Raced("The session goes on elsewhere.")
        return replace(record, revision=revision)

    async def _sweep(self) -> None:
        """Delete records that are too old, and the oldest if there are too many."""
        now_s = self._clock.monotonic()
        if now_s - self._swept_s < _SWEEP_EVERY_S and self._past <= MOST_PAST:
            return
        self._swept_s = now_s
        by_age = sorted((await self._state.list(PAST)).entries, key=_ended)
        oldest = self._clock.now() - self._retention
        most = MOST_PAST - MOST_PAST // 10
        too_many = len(by_age) - most if len(by_age) > MOST_PAST else 0
        gone = [each for n, each in enumerate(by_age) if n < too_many or _ended(each) <= oldest]
        self._past = len(by_age) - len(gone)
        for at in range(0, len(gone), _SWEPT_AT_ONCE):
            part = gone[at : at + _SWEPT_AT_ONCE]
            await self._state.commit(
                [Expect(each.key, each.revision) for each in part],
                [Delete(each.key) for each in part],
            )


class AttachListing:
    """Answers `lattice sessions`."""

    def __init__(self, finder: AllocationFinder, records: SessionRecords) -> None:
        self._finder = finder
        self._records = records

    async def of(self, actor: Actor, *, name: str = "", only_open: bool = False) -> AttachSessions:
        """Newest first; with a name those of that allocation. Raises as the finder does."""
        allocation = ""
        if name:
            found = await self._finder.find(actor, Permission.VIEW_ALLOCATIONS, name)
            allocation = found.allocation.ref
        sessions, more = await self._records.of(
            actor.user, allocation=allocation, only_open=only_open
        )
        return AttachSessions(sessions=sessions, more=more)


class RecordCleanup:
    """Ends the records of sessions that no server serves any more, about every 20 s.

    A server ends the records of its own sessions. The sessions of a dead server either continue at
    another, which the record then names, or their clients never came back. Every server runs this.
    """

    def __init__(
        self,
        records: SessionRecords,
        clock: Clock,
        replicas: Callable[[], Collection[str]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`replicas` returns the ids of the servers that are up."""
        self._records = records
        self._clock = clock
        self._replicas = replicas
        self._sleep = sleep
        self._missed: dict[str, float] = {}
        """Sessions of dead servers, and when this server first saw that (monotonic)."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._sleep(_CLEANUP_EVERY_S * (0.75 + 0.5 * random.random()))  # noqa: S311
            try:
                await self.tidy()
            except LatticeError as error:
                _log.info("attach records: %s", error.message)

    async def tidy(self) -> None:
        """Check every open record once."""
        records = await self._records.all_open()
        up = frozenset(self._replicas())
        missed, self._missed = self._missed, {}
        now_s = self._clock.monotonic()
        for record in records:
            if record.left is None and record.replica not in up:
                self._missed[record.session.id] = missed.get(record.session.id, now_s)
            if self._is_over(record, now_s):
                await self._records.end(record, EndReason.CLIENT_LOST)

    def _is_over(self, record: SessionRecord, now_s: float) -> bool:
        patience_s = RESUME_S + _GRACE_S
        if record.left is not None:
            return self._clock.now() - record.left >= timedelta(seconds=patience_s)
        since_s = self._missed.get(record.session.id)
        return since_s is not None and now_s - since_s >= patience_s


class _Raced(Unavailable):
    """Another server changed the record meanwhile."""


def record_of(entry: Entry) -> SessionRecord | None:
    """The record of a key; None if it can't be parsed."""
    try:
        document: Any = json.loads(entry.value)
        facts = document["session"]
        session = AttachSession(
            id=str(facts["id"]),
            user=str(facts["user"]),
            subject=str(facts["subject"]),
            allocation=str(facts["allocation"]),
            attempt=int(facts["attempt"]),
            node=str(facts["node"]),
            command=tuple(str(each) for each in facts["command"]),
            terminal=bool(facts["terminal"]),
            started=datetime.fromtimestamp(facts["started"], UTC),
            ended=_moment(facts["ended"]),
            reason=EndReason(facts["reason"]) if facts["reason"] else None,
            exit_code=facts["exit_code"],
        )
        return SessionRecord(
            session,
            int(document["sequence"]),
            str(document["replica"]),
            _moment(document.get("left")),
            _moment(document.get("owed")),
            entry.revision,
            bool(document.get("recorded", False)),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _written(record: SessionRecord) -> bytes:
    document = {
        "session": {
            each.name: _plain(getattr(record.session, each.name)) for each in fields(AttachSession)
        },
        "sequence": record.sequence,
        "replica": record.replica,
        "left": _plain(record.left),
        "owed": _plain(record.owed),
        **({"recorded": True} if record.recorded else {}),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


def _moment(stamp: float | None) -> datetime | None:
    return None if stamp is None else datetime.fromtimestamp(stamp, UTC)


def _records(entries: Iterable[Entry]) -> tuple[SessionRecord, ...]:
    return tuple(record for entry in entries if (record := record_of(entry)) is not None)


def _ended(entry: Entry) -> datetime:
    record = record_of(entry)
    ended = record.session.ended if record else None
    return ended or datetime.fromtimestamp(0, UTC)


def _key(prefix: str, session: AttachSession) -> str:
    return f"{prefix}{_word(session.user)}/{session.id}"


def _word(user: str) -> str:
    return quote(user, safe="")
