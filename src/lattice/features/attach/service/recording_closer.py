"""Closes recordings whose session is over, and anchors them in the audit log.

The node of the session is asked for chunks that only it has. A node that does not answer is asked
again for `GIVE_UP_S`: it may start again. Then the recording is closed by a chunk of this server,
after what is durable. Every server does this. A step that was done twice changes nothing: a chunk
is written once, and the entry of the audit log has the same event id.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, NotFound, PermissionRefused, Unavailable
from lattice.domain.asciicast import CastHeader
from lattice.domain.audit import AuditAct, AuditEvent, AuditTrail
from lattice.domain.recording import (
    Anchor,
    BadRecording,
    ChunkHead,
    anchor_text,
    closing_text,
    first_position,
    link_of,
    position_after,
    write_chunk,
)
from lattice.domain.recording_proof import end_event
from lattice.domain.sealed import DataKey
from lattice.domain.stream import Carrier, CarrierLost, NodeStreams, StreamKind, StreamQuestion
from lattice.domain.stream import digest_of as stream_digest
from lattice.features.attach.model import EndReason
from lattice.features.attach.recording_frames import LeftoverMessage
from lattice.features.attach.service.recordings import (
    RecordingEntry,
    Recordings,
    StoredRecording,
)
from lattice.features.attach.service.records import SessionRecords
from lattice.foundation.recording_store import RecordingConflict, RecordingStore
from lattice.wire.conduit import Conduit, ConduitClosed

_log = logging.getLogger(__name__)

GIVE_UP_S = 15 * 60.0
CLOSE_EVERY_S = 10.0
_NODE_S = 20.0
AT_ONCE = 16
"""Recordings: each may wait `_NODE_S` for a node that does not answer."""


class RecordingCloser:
    """One for each server."""

    def __init__(
        self,
        recordings: Recordings,
        records: SessionRecords,
        store: RecordingStore,
        key_of: Callable[[str], Awaitable[DataKey]],
        nodes: NodeStreams,
        signer: GrantSigner,
        trail: AuditTrail,
        clock: Clock,
    ) -> None:
        """`key_of` returns the data key of an allocation, by its identity."""
        self._recordings = recordings
        self._records = records
        self._store = store
        self._key_of = key_of
        self._nodes = nodes
        self._signer = signer
        self._trail = trail
        self._clock = clock
        self._soon = asyncio.Event()
        self.failures_total = 0
        self.closed_total = 0

    def close_soon(self) -> None:
        """A session with a recording has ended."""
        self._soon.set()

    async def run(self) -> None:
        """Close what can be closed, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_EVERY_S * (0.75 + 0.5 * random.random())):  # noqa: S311
                    await self._soon.wait()
            self._soon.clear()
            try:
                await self.close_all()
            except LatticeError as error:
                _log.info("recordings: %s", error.message)

    async def close_all(self) -> None:
        """Try every recording once whose session is over."""
        # In this order: a session that begins between the two readings is not in the first one.
        recordings = await self._recordings.all_open()
        open_sessions = {each.session.id for each in await self._records.all_open()}
        turns = asyncio.Semaphore(AT_ONCE)

        async def close(stored: StoredRecording) -> None:
            async with turns:
                await self._try_close(stored)

        async with asyncio.TaskGroup() as closing:
            for each in recordings:
                if each.entry.session not in open_sessions:
                    closing.create_task(close(each), name="close recording")

    async def _try_close(self, stored: StoredRecording) -> None:
        try:
            await self._close(stored)
        except (LatticeError, BadRecording) as error:
            self.failures_total += 1
            _log.warning("recording %s is not closed yet: %s", stored.entry.session, error)

    async def _close(self, stored: StoredRecording) -> None:
        entry = stored.entry
        ended = await self._records.ended(entry.user, entry.session)
        reason = ended.reason.value if ended is not None and ended.reason else "server_lost"
        anchor = await self._end_of(entry)
        if anchor is None:
            anchor = await self._collected(entry, reason)
        if anchor is None:
            since = ended.ended if ended is not None and ended.ended else entry.begun
            if self._clock.now() - since < timedelta(seconds=GIVE_UP_S):
                return
            anchor = await self._closed_here(entry, reason)
        named = await self._trail.require(
            AuditEvent(
                event=end_event(entry.name),
                act=AuditAct.ATTACH_END,
                sub=entry.subject,
                user=entry.user,
                role=entry.role,
                tenant=entry.tenant,
                allocation=entry.allocation,
                owner=entry.user,
                of_tenant=entry.tenant,
                node=entry.node,
                target=entry.cluster,
                detail=anchor_text(entry.session, anchor, reason, account=entry.account),
            )
        )
        if await self._recordings.anchored(stored, named):
            self.closed_total += 1

    async def _end_of(self, entry: RecordingEntry) -> Anchor | None:
        """The end of a recording that has its last chunk; None if that is missing."""
        last = await self._store.last(entry.path)
        if last is None:
            return None
        number, chunk = last
        try:
            is_last = ChunkHead.parse(chunk).last
        except ValueError as problem:
            raise BadRecording(number, str(problem)) from None
        return Anchor(number + 1, link_of(chunk)) if is_last else None

    async def _collected(self, entry: RecordingEntry, reason: str) -> Anchor | None:
        """Store what the node has, and close it; None if the node does not give all of it."""
        conduit = Conduit()
        question = self._question(entry, reason)
        try:
            async with asyncio.timeout(_NODE_S), self._nodes.open(question) as carrier:
                carrying = asyncio.create_task(_carried(conduit, carrier), name="leftovers")
                try:
                    await self._receive(conduit, entry)
                    anchor = await self._end_of(entry) or await self._closed_here(entry, reason)
                    await conduit.send(bytes((LeftoverMessage.CLOSED,)), last=True)
                    await carrying
                finally:
                    carrying.cancel()
                    await asyncio.gather(carrying, return_exceptions=True)
        except (TimeoutError, Unavailable, NotFound, PermissionRefused, CarrierLost) as problem:
            _log.info("%s gives no recording %s: %s", entry.node, entry.session, problem)
            return None
        except ConduitClosed:
            return None
        finally:
            conduit.close()
        return anchor

    async def _receive(self, conduit: Conduit, entry: RecordingEntry) -> None:
        """Store the chunks of the node. Raises `Unavailable` if it has more."""
        last = await self._store.last(entry.path)
        expected = last[0] + 1 if last is not None else 0
        while (message := await conduit.receive()) is not None:
            if message[:1] == bytes((LeftoverMessage.UNREADABLE,)):
                raise Unavailable("The node can't read the rest of the recording.")
            if message[:1] != bytes((LeftoverMessage.CHUNK,)):
                continue
            chunk = bytes(message[1:])
            try:
                number = ChunkHead.parse(chunk).number
                if number > expected:
                    raise Unavailable(f"Chunk {expected} is neither stored nor on the node.")
                if number == expected:
                    await self._store.put(entry.path, chunk, None)
                    expected += 1
            except (ValueError, RecordingConflict) as problem:
                # Not taken for the end: the node would remove what it has.
                raise Unavailable(f"A chunk of the node does not fit: {problem}.") from None

    async def _closed_here(self, entry: RecordingEntry, reason: str) -> Anchor:
        """Write the last chunk after what is durable."""
        key = await self._key_of(entry.allocation)
        last = await self._store.last(entry.path)
        name = entry.name
        position = first_position(name)
        if last is not None:
            position = await asyncio.to_thread(position_after, key, name, last[1])
        header = CastHeader(
            columns=entry.columns,
            rows=entry.rows,
            terminal=entry.terminal,
            timestamp=int(entry.begun.timestamp()),
            command=entry.command,
        )
        text = closing_text(position, header, reason)
        chunk, after = write_chunk(key, name, position, text, last=True)
        try:
            await self._store.put(entry.path, chunk.data, position.before)
        except RecordingConflict:
            # Another server closed it at the same time.
            found = await self._end_of(entry)
            if found is None:
                raise
            return found
        return Anchor(after.number, after.before)

    def _question(self, entry: RecordingEntry, reason: str) -> StreamQuestion:
        opening = f"{entry.session} {reason or EndReason.OTHER.value}".encode("ascii", "replace")
        kind = StreamKind.RECORDINGS
        # The carrier is a stream of its own, beside that of the session.
        stream = secrets.token_hex(16)
        grant = self._signer.issue(
            kind.act,
            entry.node,
            subject="lattice",
            user=entry.user,
            job_id=0,
            started=0,
            digest=stream_digest(stream, kind, opening),
        )
        return StreamQuestion(
            node=entry.node, kind=kind, session=stream, opening=opening, grant=grant
        )


async def _carried(conduit: Conduit, carrier: Carrier) -> None:
    with suppress(CarrierLost, ConduitClosed):
        await conduit.carry(carrier)
