"""`AuditLog`: the port `AuditTrail`. One writer commits what many callers record, in batches.

While a commit is under way, the next batch gathers. So many callers share one transaction, and none
waits for more than two.

A required event is committed or refused. An ordinary one waits in a bounded queue. What exceeds the
queue is counted. The count is recorded as an entry of its own as soon as there is room.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields

from lattice.base.errors import Unavailable
from lattice.domain.audit import (
    AuditAct,
    AuditEntry,
    AuditEvent,
    AuditOutcome,
    SensitiveAuditRequired,
)
from lattice.features.audit.service.chain import (
    MOST_TRIES,
    AuditChain,
    pause_after,
    too_busy,
)

_log = logging.getLogger("lattice.audit")

MOST_QUEUED = 5_000
MOST_REQUIRED = 2_000
MOST_IN_BATCH = 128
"""Together they stay below the largest value of the store, because an entry has 400 bytes."""
LARGEST_BATCH_BYTES = 48 * 1024
PATIENCE_S = 5.0
_RETRY_S = 1.0
_ENTRY_OVERHEAD_BYTES = 400
_TEXTS = tuple(each.name for each in fields(AuditEvent))


@dataclass(eq=False, slots=True)
class _Waiting:
    """A queued event. `done` is None if nobody waits for it."""

    event: AuditEvent
    done: asyncio.Future[AuditEntry] | None


class AuditLog:
    """Records events. `run` must run while it is used."""

    def __init__(
        self,
        chain: AuditChain,
        *,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.chain = chain
        self._patience_s = patience_s
        self._sleep = sleep
        self._queue: deque[_Waiting] = deque()
        self._required = 0
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._lost = 0
        self.lost_total = 0
        self.committed_total = 0
        self.refused_total = 0

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def require(self, event: AuditEvent) -> AuditEntry:
        """Return after the entry is committed. Raises `SensitiveAuditRequired`."""
        if self._required >= MOST_REQUIRED:
            self.refused_total += 1
            raise SensitiveAuditRequired("too many events wait to be recorded.")
        self._required += 1
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._alone(event) or await self._with_others(event)
        except Unavailable as problem:
            self.refused_total += 1
            raise SensitiveAuditRequired(problem.message) from None
        except TimeoutError:
            self.refused_total += 1
            raise SensitiveAuditRequired("the agreed state does not answer.") from None
        finally:
            self._required -= 1

    async def _alone(self, event: AuditEvent) -> AuditEntry | None:
        """Commit it here if nothing else waits, which saves the turns of two tasks."""
        if self._queue or self._lost or self._writing.locked():
            return None
        async with self._writing:
            entries = await self.chain.try_append([event])
        if entries is None:
            return None
        self.committed_total += 1
        return entries[0]

    async def _with_others(self, event: AuditEvent) -> AuditEntry:
        done: asyncio.Future[AuditEntry] = asyncio.get_running_loop().create_future()
        self._enqueue(_Waiting(event, done))
        return await done

    def note(self, event: AuditEvent) -> None:
        """Record it soon, without waiting."""
        if len(self._queue) - self._required >= MOST_QUEUED:
            if not self._lost:
                _log.error("the audit log loses events: its queue is full")
            self._lost += 1
            self.lost_total += 1
            return
        self._enqueue(_Waiting(event, None))

    async def run(self) -> None:
        """Commit what is queued, until cancelled."""
        while True:
            await self._wake.wait()
            if not await self.flush():
                await self._sleep(_RETRY_S)

    async def flush(self) -> bool:
        """Commit all that is queued now; False if the state store does not take it."""
        async with self._writing:
            tries = 0
            while batch := self._take():
                try:
                    if await self._write(batch):
                        tries = 0
                        continue
                except Unavailable as problem:
                    self._fail(batch, problem)
                    return False
                except asyncio.CancelledError:
                    # The server stops: `close` tries once more, with the same ids.
                    self._put_back(batch)
                    raise
                except Exception:
                    self._lose(batch)
                    raise
                tries += 1
                if tries >= MOST_TRIES:
                    self._fail(batch, too_busy())
                    return False
                # What has come meanwhile goes with it.
                self._put_back(batch)
                await pause_after(tries - 1)
            self._wake.clear()
            return True

    async def close(self) -> None:
        """Commit the rest before the server stops, if the state store takes it at once."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self.flush()
        except TimeoutError:
            pass
        if self._queue:
            _log.error("events are not in the audit log", extra={"count": len(self._queue)})

    def _enqueue(self, waiting: _Waiting) -> None:
        self._queue.append(waiting)
        self._wake.set()

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        if self._lost:
            batch.append(_Waiting(_gap(self._lost), None))
        while self._queue and len(batch) < MOST_IN_BATCH:
            first = self._queue[0]
            size += _size(first.event)
            if batch and size > LARGEST_BATCH_BYTES:
                break
            self._queue.popleft()
            # A caller that no longer waits has been refused: its act does not happen.
            if first.done is None or not first.done.done():
                batch.append(first)
        return batch

    async def _write(self, batch: list[_Waiting]) -> bool:
        """False if another replica was first: nothing was committed."""
        gap = self._lost if batch[0].event.act is AuditAct.GAP else 0
        entries = await self.chain.try_append([each.event for each in batch])
        if entries is None:
            return False
        self._lost -= gap
        self.committed_total += len(entries)
        for waiting, entry in zip(batch, entries, strict=True):
            if waiting.done is not None and not waiting.done.done():
                waiting.done.set_result(entry)
        return True

    def _fail(self, batch: list[_Waiting], problem: Unavailable) -> None:
        ordinary = [each for each in batch if each.done is None]
        for waiting in batch:
            if waiting.done is not None and not waiting.done.done():
                waiting.done.set_exception(Unavailable(problem.message, hint=problem.hint))
        # They keep their ids, so what was committed after all is not committed again.
        self._put_back(ordinary)
        _log.warning("the audit log can't be written", extra={"reason": problem.message})

    def _lose(self, batch: list[_Waiting]) -> None:
        """After a defect: what can't be written must not stop all that comes after it."""
        for waiting in batch:
            if waiting.done is not None and not waiting.done.done():
                waiting.done.set_exception(Unavailable("An entry could not be written.", hint=""))
        lost = sum(each.done is None and each.event.act is not AuditAct.GAP for each in batch)
        self._lost += lost
        self.lost_total += lost
        _log.error("the audit log loses events after a defect", extra={"count": lost})

    def _put_back(self, batch: list[_Waiting]) -> None:
        """The next batch names a gap anew, as large as it is then."""
        self._queue.extendleft(
            each for each in reversed(batch) if each.event.act is not AuditAct.GAP
        )


def _gap(lost: int) -> AuditEvent:
    return AuditEvent(
        event=f"gap-{uuid.uuid4().hex}",
        act=AuditAct.GAP,
        outcome=AuditOutcome.FAILED,
        detail=f"{lost} events: the queue of a server was full, or it could not write them",
    )


def _size(event: AuditEvent) -> int:
    """An upper limit of the size of the entry; JSON may escape a character with 12 bytes."""
    text = "".join([getattr(event, each) for each in _TEXTS])
    return _ENTRY_OVERHEAD_BYTES + (len(text) if text.isascii() else 12 * len(text))
