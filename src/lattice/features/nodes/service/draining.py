"""`FailedNodeDrain`: takes nodes out of service whose GPUs are in failure, where the site says so.

Every server looks at how the agents judge their nodes; the agreed state lets one of them act, once
(the rules are `lattice.domain.draining`). It is Slurm's own drain, with the rule and what was seen
as the reason: what runs goes on, and only a person puts a node back.

Nothing is drained on what is not known to be so now: not while the agents' state or Slurm's is old,
nor for an agent that is away, nor a node that Slurm has out of service already.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from lattice.access.actor import Actor
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.draining import (
    LEDGER,
    BadLedger,
    Ledger,
    claimed,
    drained,
    has_room,
    is_open,
    read_ledger,
    without,
    written,
)
from lattice.domain.node import Health, NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import NodeAct, NodeOperator
from lattice.domain.presence import PresenceReading, Presences
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import Expect, Put, StateStore
from lattice.features.nodes.service.nodes import ActJournal, signed_reason

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
RULE = "gpu_health"
"""The rule of `lattice diag` that says the same of a job's cards."""
_ITSELF = Actor(sub="lattice-server", user="lattice")
_SOUND = frozenset({Health.HEALTHY, Health.WARNING})
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTerms:
    """What the site allows."""

    after_s: float = 60.0
    """For how long a node has to be in failure first."""
    most_per_hour: int = 4


@dataclass(slots=True)
class DrainCounts:
    """What this server did, since it began."""

    drained_total: int = 0
    failed_total: int = 0
    held_back_total: int = 0
    """Nodes that were left in service because enough had been drained within the hour."""


class FailedNodeDrain:
    """Whoever composes the process runs `run`."""

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
        """`in_service`: nodes that Slurm may give to jobs, as last read; none while that is old."""
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
        """Look until cancelled."""
        while True:
            # Servers that began together do not stay together.
            await self._sleep(LOOK_EVERY_S * (0.75 + 0.5 * random.random()))  # noqa: S311
            try:
                await self.look()
            except LatticeError as error:
                _log.info("drain: %s", error.message)
            except BadLedger as error:
                _log.warning("drain: %s does not read, so nothing is drained: %s", LEDGER, error)

    async def look(self) -> None:
        """Look at every node once, and drain those that are due."""
        reading = self._presences.presences()
        if not reading.source.ok:
            self._failing_since_s.clear()
            return
        due = self._due(_failing(reading))
        if not due and not self._has_claims:
            return
        await self._forget(reading)
        usable = self._in_service()
        for node, words in due.items():
            if node in usable:
                await self._consider(node, words)

    def _due(self, failing: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Those that have been in failure for long enough, as this server saw it."""
        now_s, since_s = self._clock.monotonic(), self._failing_since_s
        self._failing_since_s = {node: since_s.get(node, now_s) for node in failing}
        self._held_back &= failing.keys()
        return {
            node: words
            for node, words in sorted(failing.items())
            if now_s - self._failing_since_s[node] >= self._terms.after_s
        }

    async def _forget(self, reading: PresenceReading) -> None:
        """Let go of the claims on nodes that are sound."""
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

    async def _consider(self, node: str, words: tuple[str, ...]) -> None:
        now = self._clock.now().timestamp()
        ledger, revision = await self._read()
        if not is_open(ledger, node, now):
            return
        if not has_room(ledger, node, now, self._terms.most_per_hour):
            self._hold_back(node, words)
            return
        state = (await self._operator.states(NodeSet([node]))).get(node)
        if state in {NodeState.DRAINING, NodeState.DRAINED} and node in ledger.claims:
            # Whoever claimed it did drain it, and died before he said so.
            await self._commit(drained(ledger, node), revision)
        if state not in {NodeState.READY, NodeState.DEGRADED}:
            return
        if await self._commit(claimed(ledger, node, now), revision):
            self._has_claims = True
            await self._drain(node, words)

    async def _drain(self, node: str, words: tuple[str, ...]) -> None:
        reason = _reason(words)
        try:
            await self._operator.drain(NodeSet([node]), reason)
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

    def _hold_back(self, node: str, words: tuple[str, ...]) -> None:
        if node in self._held_back:
            return
        self._held_back.add(node)
        self.counts.held_back_total += 1
        allowed = f"{self._terms.most_per_hour} nodes an hour are drained at most"
        detail = f"{allowed}; {_reason(words)}"
        self._journal.acted(f"{NodeAct.DRAIN.value} held back", node, _ITSELF.sub, detail)

    async def _read(self) -> tuple[Ledger, int]:
        entry = await self._store.get(LEDGER)
        return read_ledger(entry.value if entry else None), entry.revision if entry else 0

    async def _commit(self, ledger: Ledger, revision: int) -> bool:
        """False if another server changed it meanwhile."""
        put = Put(LEDGER, written(ledger))
        return await self._store.commit([Expect(LEDGER, revision)], [put]) is not None


def _failing(reading: PresenceReading) -> dict[str, tuple[str, ...]]:
    """Why each node is in failure. What a lost agent said is not how the node is now."""
    return {
        node: record.health.words
        for node, record in reading.records.items()
        if record.linked and record.health.health is Health.FAILURE
    }


def _reason(words: tuple[str, ...]) -> str:
    return signed_reason(_ITSELF, f"{RULE}: failure: {'; '.join(words) or 'no words'}")


def in_service(scheduler: Scheduler) -> frozenset[str]:
    """The nodes that Slurm may give to jobs; none while what is known of them is old."""
    reading = scheduler.live()
    if not reading.source.ok:
        return frozenset()
    return frozenset(each.name for each in reading.cluster.nodes if each.state is NodeState.READY)
