"""Polls one list of slurmctld (jobs or nodes) at little cost.

There are three savings. `update_time` makes slurmctld answer "nothing changed" (304) instead of the
list. A record with the same bytes as last time is not decoded again. The list is read as a whole,
without `update_time`, only every minute, or every 5 s while jobs wait. That is needed because
slurmctld changes the reason of a waiting job without counting it as a change. Nodes are always read
as a whole: slurmrestd uses the same `update_time` for nodes and partitions. If a node changed and
no partition did, the answer is an error.

`update_time` is compared with slurmctld's clock, not ours. From v0.0.40 on a list contains the time
for the next poll. Before, it is measured with `diag`; otherwise the difference of the clocks would
hide changes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lattice.adapters.slurm.answer import SlurmAnswer, checked, loosely, read_answer
from lattice.adapters.slurm.dialect import Dialect, Dialects
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.schema import Raw
from lattice.adapters.slurm.schema.decoder import Schema
from lattice.base.clock import Clock

T = TypeVar("T")

_NOT_MODIFIED = 304
_NOT_FOUND = 404
_FULL_EVERY_S = 60.0
_RESTLESS_EVERY_S = 5.0
_CLOCK_EVERY_S = 60.0
# Longer than slurmrestd waits for slurmctld (MessageTimeout, 10 s). It goes on waiting after its
# client has left, so that a client that comes back earlier holds several of its few threads.
_LEAST_TIMEOUT_S = 15.0
_MOST_TIMEOUT_S = 60.0
_IN_LOOP_BYTES = 256 * 1024
_LIMIT_BYTES = 1024 * 1024 * 1024
_MARGIN_S = 1


@dataclass(slots=True)
class PollCounts:
    """The cost of polling so far, for the server's metrics."""

    polls_total: int = 0
    polls_unchanged_total: int = 0
    polls_failed_total: int = 0
    poll_seconds_total: float = 0.0
    records_decoded_total: int = 0
    records_reused_total: int = 0
    decode_dropped_total: int = 0


class ControllerClock:
    """slurmctld's time in whole seconds, never ahead of it, measured with `diag`."""

    def __init__(self, rest: SlurmRest, clock: Clock) -> None:
        self._rest = rest
        self._clock = clock
        self._measured_at = -math.inf
        self._ahead_s: float | None = None

    async def now(self, dialect: Dialect) -> int | None:
        """A time for `update_time`, or None if it isn't known: then everything is read."""
        if self._clock.monotonic() - self._measured_at >= _CLOCK_EVERY_S:
            self._ahead_s = await self._measure(dialect.path("diag"))
            self._measured_at = self._clock.monotonic()
        if self._ahead_s is None:
            return None
        return math.floor(self._clock.now().timestamp() + self._ahead_s) - _MARGIN_S

    async def ahead_s(self, dialect: Dialect) -> float | None:
        """How far it is ahead of ours, measured now; up to a second less than it is."""
        return await self._measure(dialect.path("diag"))

    async def _measure(self, path: str) -> float | None:
        reply = await self._rest.get(path, timeout_s=_LEAST_TIMEOUT_S)
        after = self._clock.now().timestamp()
        try:
            req_time = loosely(reply.body)["statistics"]["req_time"]
            moment = req_time["number"] if isinstance(req_time, dict) else req_time
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return moment - after if isinstance(moment, int) and moment > 0 else None


class Polled(Generic[T]):
    """The records of one list, by the hash of their bytes."""

    def __init__(
        self,
        rest: SlurmRest,
        dialects: Dialects,
        clock: Clock,
        controller_clock: ControllerClock,
        *,
        name: str,
        decode: Callable[[Schema, Raw], T | None],
        restless: Callable[[T], bool] = lambda _record: False,
        whole: bool = False,
    ) -> None:
        """`restless` records change without `update_time`; with `whole` it is never used."""
        self.counts = PollCounts()
        self.records: tuple[T, ...] = ()
        self.last_cost_s = 0.0
        self.usual_cost_s = 0.0
        """The lesser of the last two: one slow poll does not predict the next."""
        self._rest = rest
        self._dialects = dialects
        self._clock = clock
        self._name = name
        self._decode = decode
        self._restless = restless
        self._whole = whole
        self._known: dict[int, T] = {}
        self._version = ""
        self._changing = asyncio.Lock()
        self._since: int | None = None
        self._has_last_update = False
        self._full_at = -math.inf
        self._full_cost_s = 0.0
        self._controller_clock = controller_clock

    async def poll(self) -> bool:
        """Read once; True if the list may have changed. Raises `Unavailable`."""
        begun = self._clock.monotonic()
        self.counts.polls_total += 1
        try:
            changed = await self._poll(begun)
        except BaseException:
            self.counts.polls_failed_total += 1
            # The state of slurmctld is unknown: read everything next time.
            self._since = None
            raise
        finally:
            cost_s = self._clock.monotonic() - begun
            # The first poll includes one-time requests, so it does not predict the next either.
            self.usual_cost_s = min(cost_s, self.last_cost_s)
            self.last_cost_s = cost_s
            self.counts.poll_seconds_total += self.last_cost_s
        self.counts.polls_unchanged_total += not changed
        return changed

    async def replace_all(self, change: Callable[[T], T]) -> None:
        """Apply data from elsewhere (a tenant, a switch) to every record."""
        async with self._changing:
            self._known = {mark: change(record) for mark, record in self._known.items()}
            self.records = tuple(self._known.values())

    async def _poll(self, begun: float) -> bool:
        dialect = await self._dialects.live()
        if dialect.version != self._version:
            self._version, self._known, self._since = dialect.version, {}, None
        if self._whole or begun - self._full_at >= self._full_every_s():
            self._since = None
        timed = not (self._has_last_update or self._whole)
        asked_at = await self._controller_clock.now(dialect) if timed else None
        params = {} if self._since is None else {"update_time": str(self._since)}
        timeout_s = min(max(_LEAST_TIMEOUT_S, 4 * self._full_cost_s), _MOST_TIMEOUT_S)
        path = dialect.path(self._name)
        reply = await self._rest.get(path, params, timeout_s=timeout_s, limit_bytes=_LIMIT_BYTES)
        if reply.status == _NOT_MODIFIED and self._since is not None:
            return False
        if reply.status == _NOT_FOUND:
            self._dialects.forget()
        taken = await self._take(reply.status, reply.body, dialect.schema, path)
        if taken is None:
            return False
        if self._since is not None and not taken.records:
            # It may mean that nothing changed, or that nothing is left.
            self._since = None
            return await self._poll(begun)
        self._has_last_update = bool(taken.last_update)
        self._since = taken.last_update if self._has_last_update else asked_at
        self._full_at = begun
        self._full_cost_s = self._clock.monotonic() - begun
        return True

    def _full_every_s(self) -> float:
        return _RESTLESS_EVERY_S if any(map(self._restless, self.records)) else _FULL_EVERY_S

    async def _take(
        self, status: int, body: bytes, schema: Schema, path: str
    ) -> SlurmAnswer | None:
        # None if the answer is "nothing changed".
        polled = self._since is not None

        def work() -> tuple[SlurmAnswer | None, dict[int, T], int]:
            answer = read_answer(body, self._name)
            if polled and answer.unchanged:
                return None, {}, 0
            if polled and not answer.records:
                return checked(answer, status, path), self._known, 0
            known, dropped = self._merge(checked(answer, status, path).records, schema)
            return answer, known, dropped

        # Large lists are decoded in a thread, so that readers are served meanwhile.
        large = len(body) > _IN_LOOP_BYTES
        async with self._changing:
            answer, known, dropped = await asyncio.to_thread(work) if large else work()
            if answer is not None:
                self._known = known
                self.records = tuple(known.values())
        self.counts.decode_dropped_total += dropped
        return answer

    def _merge(self, raws: Iterable[Raw], schema: Schema) -> tuple[dict[int, T], int]:
        known: dict[int, T] = {}
        dropped = 0
        for raw in raws:
            mark = hash(bytes(raw))
            record = self._known.get(mark)
            if record is None:
                record = self._decode(schema, raw)
                self.counts.records_decoded_total += 1
            else:
                self.counts.records_reused_total += 1
            if record is None:
                dropped += 1
            else:
                known[mark] = record
        return known, dropped
