"""`PresenceKeeper`: each replica's view of the agents, and its updates of their condition.

Each second it examines the agents with a changed key, and those that are lost. It records lost
links and sets conditions by time. It writes only changes, and expects both keys as it read them.
Any replica may do it; the second one finds it done. The rules are `lattice.domain.presence`. The
holders of links put them.

A blind replica declares nothing lost. While the agreed state does not answer, no condition is set.
After it answers again, agents get time to reconnect first.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.node import Condition
from lattice.domain.presence import (
    LINKS,
    NODES,
    BadRecord,
    Link,
    Presence,
    PresenceReading,
    Times,
    judged,
    linked,
    read_link,
    read_presence,
    written,
)
from lattice.domain.source import Source
from lattice.domain.state import Entry, Expect, Put, StateStore, StateView
from lattice.foundation.own_metrics import OwnMetrics

_log = logging.getLogger(__name__)

JUDGE_EVERY_S = 1.0
SETTLE_S = 15.0
"""After blindness no condition gets worse for so long: a living agent is linked again by then."""
_BATCH = 40

T = TypeVar("T", Link, Presence)


@dataclass(slots=True)
class PresenceCounts:
    """What the keeper did since it began."""

    changes_total: int = 0
    races_lost_total: int = 0


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A record to write, and what both keys have to be for it."""

    expect: tuple[Expect, Expect]
    record: Presence


class PresenceKeeper:
    """The port `Presences`. The composition root runs the views and `run`."""

    def __init__(
        self,
        store: StateStore,
        links: StateView,
        nodes: StateView,
        clock: Clock,
        times: Times,
        *,
        sensitive: Callable[[str], bool] = lambda _node: False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`links` and `nodes` are views of those two prefixes."""
        self._store = store
        self._links = _Decoded(links, LINKS, read_link)
        self._nodes = _Decoded(nodes, NODES, read_presence)
        self._clock = clock
        self.times = times
        self._sensitive = sensitive
        self._sleep = sleep
        self._sighted_s = math.inf
        """Since when the agreed state answers; infinite while it does not."""
        self._unsettled: set[str] = set()
        """Agents to examine: a key changed, or their condition depends on the time."""
        self.counts = PresenceCounts()

    def presences(self) -> PresenceReading:
        """The last known state, at once, with its age. The records change with later calls."""
        self._update()
        return PresenceReading(self._nodes.records, self._links.records, self._source())

    def gauges(self) -> dict[str, float]:
        """The number of linked agents, and of the others by condition; empty if not current."""
        if not self._source().ok:
            return {}
        self._update()
        records = self._nodes.records.values()
        lost = [each.condition for each in records if not each.linked]
        return {
            "agents_linked": len(records) - len(lost),
            "agents_lost": lost.count(Condition.READY),
            "agents_degraded": lost.count(Condition.DEGRADED),
            "agents_down": lost.count(Condition.DOWN),
        }

    def show(self, own_metrics: OwnMetrics) -> None:
        """Add the counts to the server's metrics."""
        own_metrics.watch(lambda: {f"presence_{k}": v for k, v in asdict(self.counts).items()})
        own_metrics.show(self.gauges)

    async def run(self) -> None:
        """Update the records until cancelled."""
        while True:
            # Replicas that began together do not stay in step.
            await self._sleep(JUDGE_EVERY_S * (0.75 + 0.5 * random.random()))  # noqa: S311
            try:
                await self.judge()
            except LatticeError as error:
                _log.info("presence: %s", error.message)

    async def judge(self) -> None:
        """Examine each agent that is not settled, and write what has changed."""
        if not self._source().ok:
            self._sighted_s = math.inf
            return
        self._sighted_s = min(self._sighted_s, self._clock.monotonic())
        self._update()
        verdicts = []
        for node in tuple(self._unsettled):
            verdict = self._verdict(node)
            if verdict is not None:
                verdicts.append(verdict)
            elif self._is_settled(node):
                self._unsettled.discard(node)
        for start in range(0, len(verdicts), _BATCH):
            await self._write(verdicts[start : start + _BATCH])

    def _source(self) -> Source:
        sources = (self._nodes.view.source, self._links.view.source)
        # The worse of both counts.
        return max(sources, key=lambda each: (not each.ok, each.age_s or 0.0))

    def _update(self) -> None:
        self._unsettled.update(self._nodes.update(), self._links.update())

    def _is_settled(self, node: str) -> bool:
        """True if a node without a verdict gets none before one of its keys changes."""
        record = self._nodes.records.get(node)
        return record is None or record.linked or record.condition is Condition.DOWN

    def _verdict(self, node: str) -> _Verdict | None:
        record, link = self._nodes.records.get(node), self._links.records.get(node)
        if self._nodes.unreadable(node) or self._links.unreadable(node):
            return None
        now = self._clock.now().timestamp()
        if record is None:
            after = linked(None, link, now) if link is not None else None
        else:
            sensitive = self._sensitive(node)
            after = judged(record, link, now, self.times, sensitive=sensitive)
        if after is None or (self._is_settling() and after.condition is not Condition.READY):
            return None
        return _Verdict((self._links.expect(node), self._nodes.expect(node)), after)

    def _is_settling(self) -> bool:
        return self._clock.monotonic() - self._sighted_s < SETTLE_S

    async def _write(self, verdicts: list[_Verdict]) -> None:
        expect = [each for verdict in verdicts for each in verdict.expect]
        puts = [Put(NODES + each.record.node, written(each.record)) for each in verdicts]
        try:
            revision = await self._store.commit(expect, puts)
        except Unavailable:
            self._sighted_s = math.inf
            raise
        if revision is not None:
            self.counts.changes_total += len(verdicts)
            self._log_changes(verdicts)
        elif len(verdicts) == 1:
            self.counts.races_lost_total += 1
        else:
            # Another replica changed one of them; the others are still valid.
            for verdict in verdicts:
                await self._write([verdict])

    def _log_changes(self, verdicts: list[_Verdict]) -> None:
        for verdict in verdicts:
            record = verdict.record
            state = record.condition.value if not record.linked else "linked"
            how = "lost" if not record.linked and record.condition is Condition.READY else state
            _log.info("node %s: %s (epoch %d)", record.node, how, record.epoch)


class _Decoded(Generic[T]):
    """A view's values as records; only changed ones are parsed."""

    def __init__(self, view: StateView, prefix: str, read: Callable[[str, bytes], T]) -> None:
        self.view = view
        self._prefix = prefix
        self._read: Callable[[str, bytes], T] = read
        self._changes = view.reader()
        self._revisions: dict[str, int] = {}
        self._records: dict[str, T] = {}
        self.records: Mapping[str, T] = MappingProxyType(self._records)
        """The records by node; unreadable ones are left out."""

    def update(self) -> list[str]:
        """Read what changed since the last call; returns the nodes."""
        nodes = []
        for change in self._changes.take():
            node = change.key.removeprefix(self._prefix)
            self._records.pop(node, None)
            self._revisions.pop(node, None)
            if change.entry is not None:
                self._take(node, change.entry)
            nodes.append(node)
        return nodes

    def _take(self, node: str, entry: Entry) -> None:
        self._revisions[node] = entry.revision
        try:
            self._records[node] = self._read(node, entry.value)
        except BadRecord as error:
            _log.warning("presence: %s", error)

    def unreadable(self, node: str) -> bool:
        """True if the node has an unreadable value."""
        return node in self._revisions and node not in self._records

    def expect(self, node: str) -> Expect:
        """The revision of the key as it was read here."""
        return Expect(self._prefix + node, self._revisions.get(node, 0))
