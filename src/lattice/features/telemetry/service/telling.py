"""What each node is told of its jobs: which are not measured as usual, and which GPUs are whose.

Made once for a change, for the nodes that it concerns, however many agents listen. Looked at a
few times a second: where neither the cluster's reading nor the modes have changed, that is two
comparisons.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, NodeGpus
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import Scheduler
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.convert import ToldJobs
from lattice.features.telemetry.service.modes import AgreedModes, SwitchedMode

LOOK_EVERY_S = 0.25


_Mode = tuple[Mode, float | None]


@dataclass(frozen=True, slots=True)
class _Here:
    """What is told of one job on one of its nodes."""

    mode: _Mode | None
    gpus: tuple[int, ...] | None = None
    """Empty: it has some, and Slurm has not said which. None: it has none here."""


@dataclass(frozen=True, slots=True)
class _Word:
    """What is told of one job."""

    nodes: str
    gpus: tuple[NodeGpus, ...]
    mode: _Mode | None
    unsaid: bool = False
    """It has GPUs, and Slurm has not said which."""

    def by_node(self) -> dict[str, _Here]:
        """Only of nodes for which there is something to say."""
        found = {each.node: _Here(self.mode, each.indices) for each in self.gpus}
        if self.mode is not None or self.unsaid:
            with suppress(ValueError):
                for node in NodeSet.parse(self.nodes):
                    found.setdefault(node, _Here(self.mode, () if self.unsaid else None))
        return found


class JobTelling:
    """`run` keeps it current; whoever composes the process owns that task."""

    def __init__(self, scheduler: Scheduler, modes: AgreedModes, clock: Clock) -> None:
        self._scheduler = scheduler
        self._modes = modes
        self._clock = clock
        self._allocations: tuple[Allocation, ...] | None = None
        self._switched: Mapping[str, SwitchedMode] | None = None
        self._look_again_at = 0.0
        self._words: dict[int, _Word] = {}
        self._by_node: dict[str, dict[int, _Here]] = {}
        self._listeners: dict[str, set[asyncio.Event]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def follow(self, node: str) -> AsyncIterator[ToldJobs]:
        """First what there is to tell, then whatever changes it."""
        changed = asyncio.Event()
        listeners = self._listeners.setdefault(node, set())
        listeners.add(changed)
        told: ToldJobs | None = None
        try:
            while True:
                changed.clear()
                if (now := self.told(node)) != told:
                    told = now
                    yield told
                await changed.wait()
        finally:
            listeners.discard(changed)
            if not listeners and self._listeners.get(node) is listeners:
                del self._listeners[node]

    def told(self, node: str) -> ToldJobs:
        """What this node is told now."""
        here = self._by_node.get(node, {})
        return ToldJobs(
            modes={job_id: each.mode for job_id, each in here.items() if each.mode is not None},
            usual=self._modes.usual,
            gpus={job_id: each.gpus for job_id, each in here.items() if each.gpus is not None},
        )

    def look(self) -> None:
        """Take in what has changed, and wake those whom it concerns."""
        try:
            allocations = self._scheduler.live().cluster.allocations
        except Unavailable:
            return
        switched, now = self._modes.switched, self._clock.now().timestamp()
        same = allocations is self._allocations and switched is self._switched
        if same and now < self._look_again_at:
            return
        self._allocations, self._switched = allocations, switched
        in_force = {name: each for name, each in switched.items() if each.holds(now)}
        self._look_again_at = min(
            (each.until for each in in_force.values() if each.until is not None),
            default=float("inf"),
        )
        self._take(dict(_words(allocations, in_force)))

    def _take(self, words: dict[int, _Word]) -> None:
        before, self._words = self._words, words
        concerned: set[str] = set()
        for job_id in before.keys() | words.keys():
            old, new = before.get(job_id), words.get(job_id)
            if old == new:
                continue
            for node in old.by_node() if old else ():
                here = self._by_node.get(node, {})
                here.pop(job_id, None)
                if not here:
                    self._by_node.pop(node, None)
                concerned.add(node)
            for node, told in new.by_node().items() if new else ():
                self._by_node.setdefault(node, {})[job_id] = told
                concerned.add(node)
        for node in concerned & self._listeners.keys():
            for changed in self._listeners[node]:
                changed.set()


def _words(
    allocations: Iterable[Allocation], in_force: Mapping[str, SwitchedMode]
) -> Iterable[tuple[int, _Word]]:
    """Of the jobs on nodes, those of which there is something to say."""
    for each in allocations:
        if not each.nodes or each.state.finished or each.state.waiting:
            continue
        switched = in_force.get(each.ref) if in_force else None
        mode = (switched.mode, switched.until) if switched else None
        unsaid = bool(each.gpus) and not each.gpu_indices
        if mode is not None or unsaid or each.gpu_indices:
            yield each.job_id, _Word(each.nodes, each.gpu_indices, mode, unsaid)
