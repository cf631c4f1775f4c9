"""`FailedNodeDrain`: drains nodes with failed GPUs, if the site enables it.

Every server reads the health that agents report. The state store lets one server act, once (the
rules are in `lattice.domain.drains`). It uses Slurm's own drain, with the rule and the fault as the
reason. Running jobs continue, and only a person returns a node to service.

Nothing is drained on outdated data. That holds for old data from agents or Slurm, and for an agent
that is not linked. Nodes that Slurm has already out of service are left alone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from lattice.access.actor import Actor
from lattice.access.journal import ActJournal
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.drains import (
    LEDGER,
    BadLedger,
    DrainLedger,
    claimed,
    drained,
    has_room,
    is_open,
    read_ledger,
    without,
    written,
)
from lattice.domain.node import HealthState, NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import NodeAct, NodeOperator
from lattice.domain.presence import PresenceReading, Presences
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import Expect, Put, StateStore
from lattice.features.nodes.service.nodes import signed_reason

_log = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
RULE = "gpu_health"
"""The rule of `lattice diag` that reports the same for a job's GPUs."""
_ITSELF = Actor(sub="lattice-server", user="lattice")
_SOUND = frozenset({HealthState.HEALTHY, HealthState.WARNING})
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTerms:
    """Limits that the site sets."""

    after_s: float = 60.0
    """How long a node must be in failure before it is drained."""
    most_per_hour: int = 4


@dataclass(slots=True)
class DrainCounts:
    """What this server did since it started."""

    drained_total: int = 0
    failed_total: int = 0
    held_back_total: int = 0
    """Nodes left in service because the hourly limit was reached."""


class FailedNodeDrain:
    """A background loop; the composition root starts `run`."""

    def __init__(
        self,
        presences: Presences,
        in_service: Callable[[], Collection[str]],
        operator: NodeOperator,
        store: StateStore,
        journal: ActJournal,
        clock: Clock,
        terms: DrainTerms,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`in_service` returns the nodes that Slurm may use; none while its data is old."""
        self._presences = presences
        self._in_service = in_service
        self._operator = operator
        self._store = store
        self._journal = journal
        self._clock = clock
        self._terms = terms
        self._sleep = sleep
        self._failing_since_s: dict[str, float] = {}
        self._held_back: set[str] = set()
        self._has_claims = True
        self.counts = DrainCounts()

    async def run(self) -> None:
        """Check all nodes periodically, until cancelled."""
        while True:
            # Jitter: servers that start together do not check at the same time.
            await self._sleep(CHECK_EVERY_S * (0.75 + 0.5 * random.random()))  # noqa: S311
            try:
                await self.check()
            except LatticeError as error:
                _log.info("drain: %s", error.message)
            except BadLedger as error:
                _log.warning("drain: %s does not read, so nothing is drained: %s", LEDGER, error)

    async def check(self) -> None:
        """Check every node once, and drain those that are due."""
        reading = self._presences.presences()
        if not reading.source.ok:
            self._failing_since_s.clear()
            return
        due = self._due(_failing(reading))
        if not due and not self._has_claims:
            return
        await self._forget(reading)
        usable = self._in_service()
        for node, faults in due.items():
            if node in usable:
                await self._consider(node, faults)

    def _due(self, failing: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Return the nodes that this server has seen in failure for at least `after_s`."""
        now_s, since_s = self._clock.monotonic(), self._failing_since_s
        self._failing_since_s = {node: since_s.get(node, now_s) for node in failing}
        self._held_back &= failing.keys()
        return {
            node: faults
            for node, faults in sorted(failing.items())
            if now_s - self._failing_since_s[node] >= self._terms.after_s
        }

    async def _forget(self, reading: PresenceReading) -> None:
        """Remove the claims on nodes that are healthy again."""
        ledger, revision = await self._read()
        sound = {
            node
            for node, record in reading.records.items()
            if record.linked and record.health.health in _SOUND
        }
        after = without(ledger, sound)
        if after != ledger and await self._commit(after, revision):
            ledger = after
        self._has_claims = bool(ledger.claims)

    async def _consider(self, node: str, faults: tuple[str, ...]) -> None:
        now = self._clock.now().timestamp()
        ledger, revision = await self._read()
        if not is_open(ledger, node, now):
            return
        if not has_room(ledger, node, now, self._terms.most_per_hour):
            self._hold_back(node, faults)
            return
        state = (await self._operator.states(NodeSet([node]))).get(node)
        if state in {NodeState.DRAINING, NodeState.DRAINED} and node in ledger.claims:
            # The server with the claim drained the node, and died before it recorded that.
            await self._commit(drained(ledger, node), revision)
        if state not in {NodeState.READY, NodeState.DEGRADED}:
            return
        if await self._commit(claimed(ledger, node, now), revision):
            self._has_claims = True
            await self._drain(node, faults)

    async def _drain(self, node: str, faults: tuple[str, ...]) -> None:
        reason = _reason(faults)
        try:
            await self._operator.drain(NodeSet([node]), reason, by=_ITSELF.sub)
        except Exception:
            self.counts.failed_total += 1
            self._journal.acted(f"{NodeAct.DRAIN.value} failed", node, _ITSELF.sub, reason)
            raise
        self.counts.drained_total += 1
        self._journal.acted(NodeAct.DRAIN.value, node, _ITSELF.sub, reason)
        for _ in range(_TRIES):
            ledger, revision = await self._read()
            if await self._commit(drained(ledger, node), revision):
                return

    def _hold_back(self, node: str, faults: tuple[str, ...]) -> None:
        if node in self._held_back:
            return
        self._held_back.add(node)
        self.counts.held_back_total += 1
        allowed = f"{self._terms.most_per_hour} nodes an hour are drained at most"
        detail = f"{allowed}; {_reason(faults)}"
        self._journal.acted(f"{NodeAct.DRAIN.value} held back", node, _ITSELF.sub, detail)

    async def _read(self) -> tuple[DrainLedger, int]:
        entry = await self._store.get(LEDGER)
        return read_ledger(entry.value if entry else None), entry.revision if entry else 0

    async def _commit(self, ledger: DrainLedger, revision: int) -> bool:
        """Return False if another server changed the ledger meanwhile."""
        put = Put(LEDGER, written(ledger))
        return await self._store.commit([Expect(LEDGER, revision)], [put]) is not None


def _failing(reading: PresenceReading) -> dict[str, tuple[str, ...]]:
    """Return why each node is in failure. The last report of a lost agent does not count."""
    return {
        node: record.health.words
        for node, record in reading.records.items()
        if record.linked and record.health.health is HealthState.FAILURE
    }


def _reason(faults: tuple[str, ...]) -> str:
    return signed_reason(_ITSELF, f"{RULE}: failure: {'; '.join(faults) or 'no faults'}")


def in_service(scheduler: Scheduler) -> frozenset[str]:
    """Return the nodes that Slurm may give to jobs; none while its data is old."""
    reading = scheduler.live()
    if not reading.source.ok:
        return frozenset()
    return frozenset(each.name for each in reading.cluster.nodes if each.state is NodeState.READY)
