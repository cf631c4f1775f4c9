"""Publishes each node's job settings: modes that are not the default, and GPUs.

If the site lets its nodes write to the metric store, it also publishes the owners' labels. Those
are repeated every few seconds with the time of Slurm's data. A job may have just appeared on a
node. From that time the node can tell whether the labels are for an older run.

Settings are computed once per change, for the nodes concerned, independent of the number of agents.
The check runs four times a second. It costs two comparisons if neither the snapshot of the cluster
nor the modes have changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, NodeGpus
from lattice.domain.allocation_index import AllocationIndex
from lattice.domain.attempts import attempts_of, named
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import LiveCluster, Scheduler
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.convert.job_settings import NodeJobSettings, StampedRun
from lattice.features.telemetry.convert.stamps import stamps_of
from lattice.features.telemetry.service.modes import AgreedModes, SwitchedMode

CHECK_EVERY_S = 0.25
CONFIRM_EVERY_S = 10.0
"""How often a node that writes directly gets the same settings again."""

RunOf = Callable[[Allocation, LiveCluster], StampedRun | None]
"""Returns the labels of the current run; None if no node may write it."""


_Mode = tuple[Mode, float | None]


@dataclass(frozen=True, slots=True)
class _Here:
    """The settings of one job on one of its nodes."""

    mode: _Mode | None
    gpus: tuple[int, ...] | None = None
    """Empty if Slurm has not reported which GPUs it has; None if it has none here."""
    run: StampedRun | None = None


@dataclass(frozen=True, slots=True)
class _JobSettings:
    """The settings of one job."""

    nodes: str
    gpus: tuple[NodeGpus, ...]
    mode: _Mode | None
    unsaid: bool = False
    """The job has GPUs, and Slurm has not reported which."""
    run: StampedRun | None = None

    def by_node(self) -> dict[str, _Here]:
        """Return the settings by node; only nodes that need some."""
        found = {each.node: _Here(self.mode, each.indices, self.run) for each in self.gpus}
        if self.mode is not None or self.unsaid or self.run is not None:
            others = _Here(self.mode, () if self.unsaid else None, self.run)
            with suppress(ValueError):
                for node in NodeSet.parse(self.nodes):
                    found.setdefault(node, others)
        return found


class JobSettingsPublisher:
    """Publishes settings. The composition root starts `run`, which keeps them current."""

    def __init__(
        self,
        scheduler: Scheduler,
        modes: AgreedModes,
        clock: Clock,
        run_of: RunOf | None = None,
    ) -> None:
        """`run_of` is set if nodes may write to the metric store."""
        self._scheduler = scheduler
        self._modes = modes
        self._clock = clock
        self._run_of = run_of
        self._as_of = 0.0
        self._index = AllocationIndex()
        self._in_force: Mapping[str, SwitchedMode] = {}
        self._switched: Mapping[str, SwitchedMode] | None = None
        self._check_again_at = 0.0
        self._jobs: dict[int, _JobSettings] = {}
        self._by_node: dict[str, dict[int, _Here]] = {}
        self._listeners: dict[str, set[asyncio.Event]] = {}

    async def run(self) -> None:
        """Check for changes until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(CHECK_EVERY_S)

    async def follow(self, node: str) -> AsyncIterator[NodeJobSettings]:
        """Yield the current settings, then every change."""
        changed = asyncio.Event()
        listeners = self._listeners.setdefault(node, set())
        listeners.add(changed)
        settings: NodeJobSettings | None = None
        try:
            while True:
                changed.clear()
                now = self.settings(node)
                if settings is None or now != settings or (now.runs and now.as_of > settings.as_of):
                    settings = now
                    yield settings
                await self._news(changed)
        finally:
            listeners.discard(changed)
            if not listeners and self._listeners.get(node) is listeners:
                del self._listeners[node]

    async def _news(self, changed: asyncio.Event) -> None:
        if self._run_of is None:
            await changed.wait()
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), CONFIRM_EVERY_S)

    def settings(self, node: str) -> NodeJobSettings:
        here = self._by_node.get(node, {})
        return NodeJobSettings(
            modes={job_id: each.mode for job_id, each in here.items() if each.mode is not None},
            usual=self._modes.usual,
            gpus={job_id: each.gpus for job_id, each in here.items() if each.gpus is not None},
            stamping=self._run_of is not None,
            runs={job_id: each.run for job_id, each in here.items() if each.run is not None},
            as_of=self._as_of if self._run_of is not None else 0.0,
        )

    def check(self) -> None:
        """Apply changes and wake the followers concerned."""
        try:
            cluster = self._scheduler.live().cluster
        except Unavailable:
            return
        switched, now = self._modes.switched, self._clock.now().timestamp()
        is_due = switched is not self._switched or now >= self._check_again_at
        if is_due:
            in_force = {name: each for name, each in switched.items() if each.holds(now)}
            self._check_again_at = min(
                (each.until for each in in_force.values() if each.until is not None),
                default=float("inf"),
            )
            jobs = dict(self._with_settings(cluster.allocations, cluster, in_force))
            self._in_force, gone = in_force, self._jobs.keys() - jobs.keys()
        else:
            change = cluster.index.since(self._index)
            ids = {each.job_id for each in (*change.gone, *change.added)}
            here = (each for job_id in ids for each in cluster.of_job(job_id))
            jobs = dict(self._with_settings(here, cluster, self._in_force))
            gone = ids - jobs.keys()
        self._take(jobs, gone)
        # Last, so that a failure is retried.
        self._index, self._switched = cluster.index, switched
        self._as_of = cluster.read_at.timestamp()

    def _take(self, jobs: Mapping[int, _JobSettings], gone: Iterable[int]) -> None:
        concerned: set[str] = set()
        for job_id, new in (*jobs.items(), *((each, None) for each in gone)):
            old = self._jobs.get(job_id)
            if old == new:
                continue
            for node in old.by_node() if old else ():
                here = self._by_node.get(node, {})
                here.pop(job_id, None)
                if not here:
                    self._by_node.pop(node, None)
                concerned.add(node)
            if new is None:
                del self._jobs[job_id]
                continue
            self._jobs[job_id] = new
            for node, settings in new.by_node().items():
                self._by_node.setdefault(node, {})[job_id] = settings
                concerned.add(node)
        for node in concerned & self._listeners.keys():
            for changed in self._listeners[node]:
                changed.set()

    def _with_settings(
        self,
        allocations: Iterable[Allocation],
        cluster: LiveCluster,
        in_force: Mapping[str, SwitchedMode],
    ) -> Iterable[tuple[int, _JobSettings]]:
        """Yield the running jobs that need settings."""
        for each in allocations:
            if not each.nodes or each.state.finished or each.state.waiting:
                continue
            switched = in_force.get(each.ref) if in_force else None
            mode = (switched.mode, switched.until) if switched else None
            unsaid = bool(each.gpus) and not each.gpu_indices
            run = self._run_of(each, cluster) if self._run_of is not None else None
            if mode is not None or unsaid or each.gpu_indices or run is not None:
                yield each.job_id, _JobSettings(each.nodes, each.gpu_indices, mode, unsaid, run)


def current_run(is_sensitive: Callable[[Allocation], bool], clock: Clock) -> RunOf:
    """Return a `RunOf` for a site that trusts its nodes. Sensitive work is never labelled."""

    def run_of(allocation: Allocation, cluster: LiveCluster) -> StampedRun | None:
        run = attempts_of(allocation)[-1]
        if run.started is None or is_sensitive(allocation):
            return None
        try:
            attempt = named(allocation, run, cluster.accounts, clock.now())
        except Unavailable:
            return None
        return StampedRun(run.started.timestamp(), stamps_of(attempt))

    return run_of
