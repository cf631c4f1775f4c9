"""Events of attempts: from the nodes while they have them, then from the object store.

A loop stores the events of every ended attempt, once. Nodes hold them in memory after its end, so a
server that dies loses nothing: another one asks the nodes. What a node lost is named in the
document.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt
from lattice.domain.node_snapshot import NodeSnapshots
from lattice.domain.objects import BadKeyPart, NoObject, ObjectStore
from lattice.domain.run_events import (
    BadStoredEvents,
    NodeEvents,
    RunEvent,
    RunEventKind,
    SilentNode,
    StoredEvents,
    decoded,
    encoded,
    events_key,
    newest,
)
from lattice.domain.scheduler import Scheduler
from lattice.domain.telemetry import Mode
from lattice.features.timeline.model import EventKind, TimelineEvent
from lattice.foundation.ended_attempts import EndedAttemptQueue

_log = logging.getLogger(__name__)

SETTLE_S = 20.0
"""After the end: the job's processes have left its nodes."""
LATEST_S = 1200.0
"""After the end: a node that has not answered is named in the document."""
MOST_SHOWN = 500
"""Of one attempt."""
_LARGEST_BYTES = 4 * 1024 * 1024
"""The newest events of an attempt have half of it at most."""
_MOST_REASONS = 3
_ROUND_S = 15.0
_ONE_SWITCH = timedelta(seconds=45)
"""Nodes measure in a new mode within an interval of the old one."""
_KINDS = {
    RunEventKind.ALERT: EventKind.ALERT,
    RunEventKind.JOB: EventKind.JOB,
    RunEventKind.MODE: EventKind.MODE,
}
_NODES_S = 3.0
_STORING_NODES_S = 10.0


@dataclass(frozen=True, slots=True)
class EventsPart:
    """Events of an attempt, and what is missing of them."""

    events: tuple[TimelineEvent, ...] = ()
    missing: tuple[str, ...] = ()


class StoredRunEvents:
    """The object store: one document for each ended attempt."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def of(self, attempt: JobAttempt) -> StoredEvents | None:
        """The document, or None if there is none that parses. Raises `Unavailable`."""
        try:
            key = events_key(attempt)
            return decoded(await self._objects.read(key, 0, _LARGEST_BYTES))
        except (NoObject, BadKeyPart):
            return None
        except BadStoredEvents as error:
            _log.warning("events of %s can't be read: %s", attempt.allocation.ref, error)
            return None

    async def is_there(self, attempt: JobAttempt) -> bool:
        """True if the store has a document about it. Raises `Unavailable`."""
        key = events_key(attempt)
        async for each in self._objects.listing(key):
            if each.key == key:
                return True
        return False

    async def keep(self, attempt: JobAttempt, events: StoredEvents) -> bool:
        """Write it; False if another server has done so before. Raises `Unavailable`."""
        return await self._objects.put_new(events_key(attempt), encoded(events))


class RunEventLoop:
    """Stores the events of ended attempts."""

    def __init__(
        self,
        scheduler: Scheduler,
        nodes: NodeSnapshots,
        stored: StoredRunEvents,
        clock: Clock,
        replica: str = "",
        replicas: Callable[[], Collection[str]] = tuple,
        is_sensitive: Callable[[Allocation], bool] = lambda _: False,
    ) -> None:
        self.queue = EndedAttemptQueue(
            scheduler, clock, events_key, SETTLE_S, replica, replicas, is_sensitive
        )
        self._nodes = nodes
        self._stored = stored
        self._clock = clock
        self.written_total = 0

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while True:
            try:
                await self.run_round()
            except LatticeError as error:
                _log.info("events of runs: %s", error.message)
            await asyncio.sleep(_ROUND_S)

    async def run_round(self) -> None:
        """Store what is due. Raises `Unavailable`."""
        due = await self.queue.due()
        stored = await asyncio.gather(*map(self._is_stored, due))
        for attempt, done in zip(due, stored, strict=True):
            if done:
                self.queue.done(attempt)

    async def _is_stored(self, attempt: JobAttempt) -> bool:
        """Ask the nodes and store the answer; False if a node has time left to answer."""
        if await self._stored.is_there(attempt):
            return True
        nodes, silent = await self._nodes.events(attempt, within_s=_STORING_NODES_S)
        now, ended = self._clock.now(), attempt.attempt.ended
        assert ended is not None
        if silent and (now - ended).total_seconds() < LATEST_S:
            return False
        document = StoredEvents(
            written=now,
            nodes=newest(nodes),
            silent=tuple(SilentNode(node=each.node, reason=each.reason) for each in silent),
        )
        self.written_total += await self._stored.keep(attempt, document)
        return True


class AttemptEvents:
    """Reads the events of attempts. Both parts are None if the site has none."""

    def __init__(
        self, nodes: NodeSnapshots | None, stored: StoredRunEvents | None, clock: Clock
    ) -> None:
        self._nodes = nodes
        self._stored = stored
        self._clock = clock

    async def of(self, job: JobAttempt) -> EventsPart:
        """Return what is known of this attempt."""
        attempt = job.attempt
        if self._nodes is None or attempt.started is None:
            return EventsPart()
        if attempt.ended is not None:
            try:
                stored = await self._stored.of(job) if self._stored is not None else None
            except Unavailable as problem:
                return EventsPart((), (f"Events of attempt {attempt.number}: {problem.message}",))
            if stored is not None:
                return _part(stored.nodes, stored.silent)
            if (self._clock.now() - attempt.ended).total_seconds() > LATEST_S:
                missing = (
                    f"Alerts of attempt {attempt.number}, and what it reported itself, are not "
                    "kept, or not any more."
                )
                return EventsPart((), (missing,))
        nodes, unreachable = await self._nodes.events(job, within_s=_NODES_S)
        return _part(
            nodes, (SilentNode(node=each.node, reason=each.reason) for each in unreachable)
        )


def _part(nodes: Iterable[NodeEvents], silent: Iterable[SilentNode]) -> EventsPart:
    shown = newest(nodes, MOST_SHOWN)
    reasons = [
        f"Events of node {each.node}: {each.reason or 'it does not answer'}." for each in silent
    ]
    reasons += [
        f"Events of node {each.node} before {_moment(each.since):%Y-%m-%d %H:%M:%SZ} are not "
        "known: its agent was started again."
        for each in shown
        if not each.is_from_the_beginning
    ]
    reasons += [
        f"{each.dropped} older events of node {each.node} are not kept."
        for each in shown
        if each.dropped
    ]
    more = len(reasons) - _MOST_REASONS
    missing = (
        *reasons[:_MOST_REASONS],
        *((f"{more} more nodes lack events.",) if more > 0 else ()),
    )
    events = [_event(node.node, each) for node in shown for each in node.events]
    return EventsPart(
        (*_switches(events), *(each for each in events if not _is_switch(each))), missing
    )


def _is_switch(event: TimelineEvent) -> bool:
    return event.kind is EventKind.MODE


def _switches(events: Iterable[TimelineEvent]) -> Iterable[TimelineEvent]:
    """Switches of the mode, once for all nodes: the first node that measures so dates them."""
    before: TimelineEvent | None = None
    for each in sorted(filter(_is_switch, events), key=lambda each: each.time):
        if before is None or before.name != each.name or each.time - before.time > _ONE_SWITCH:
            yield replace(each, node="")
        before = each


def _event(node: str, event: RunEvent) -> TimelineEvent:
    pairs = ", ".join(f"{name} {value}" for name, value in event.attributes)
    text = f"{event.text} ({pairs})" if pairs else event.text
    return TimelineEvent(
        kind=_KINDS[event.kind],
        time=_moment(event.time),
        ended=_moment(event.ended) if event.ended is not None else None,
        lasts=event.lasts,
        node=node,
        name=event.name,
        text=_switched(event.name) if event.kind is RunEventKind.MODE else text,
    )


def _switched(name: str) -> str:
    # A later release may have other modes.
    every = {each.value: f", every {each.interval_s:g} s" for each in Mode}.get(name, "")
    return f"measured in {name}{every}"


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(max(seconds, 0.0), UTC)
