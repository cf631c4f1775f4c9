"""Nodes that tell what a test says they measured, and snapshots to tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from lattice.domain.alert import Alert, AlertRule, Phase, Progress, Severity
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, MetricReading, Sample, labelled
from lattice.domain.node_snapshot import (
    NodeBack,
    NodeMeasured,
    NodeNews,
    NodeSnapshot,
    NodeStale,
    NodeUnreachable,
)
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.run_events import NodeEvents

BEGUN = 1_794_700_000.0
"""When the job of these snapshots began."""
CARD = "GPU-00000000-aaaa-bbbb-cccc-000000000001"
OTHER_CARD = "GPU-00000000-aaaa-bbbb-cccc-000000000002"


def snapshot(
    after_s: float, *readings: MetricReading, job_id: int = 1, resolution_s: float = 30.0
) -> JobSnapshot:
    """At so many seconds after the job began."""
    identity = JobIdentity("boot", job_id, 7, BEGUN)
    return JobSnapshot(identity, BEGUN + after_s, resolution_s, readings)


def sample(metric: str, value: float, after_s: float = 0.0, **labels: str) -> Sample:
    return Sample(metric, value, BEGUN + after_s, labels=labelled(**labels))


def absent(metric: str, reason: str = "no card answers") -> Absence:
    return Absence(metric, reason)


def card(
    after_s: float,
    *,
    uuid: str = CARD,
    used: float | None = None,
    watts: float | None = None,
    limit_watts: float | None = None,
    memory: tuple[float, float] | None = None,
) -> tuple[Sample, ...]:
    """What one card tells; None is not told."""
    told = {
        "gpu_utilization_percent": used,
        "gpu_power_watts": watts,
        "gpu_power_limit_watts": limit_watts,
        "gpu_memory_used_bytes": memory[0] if memory else None,
        "gpu_memory_total_bytes": memory[1] if memory else None,
    }
    return tuple(
        sample(metric, value, after_s, gpu_uuid=uuid)
        for metric, value in told.items()
        if value is not None
    )


def alert(**changes: Any) -> Alert:
    """A GPU that has been idle since the beginning."""
    facts: dict[str, Any] = {
        "rule": AlertRule.GPU_IDLE,
        "subject": CARD,
        "phase": Phase.FIRING,
        "severity": Severity.WARNING,
        "value": 3.0,
        "bound": 10.0,
        "unit": "%",
        "since": BEGUN,
        "time": BEGUN + 90,
        "text": "GPU-00000000 is used 3 %; it was below 10 % for over 60 s.",
        "remedy": "See whether the job waits for input.",
    }
    return Alert(**facts | changes)


def sight(
    node: str,
    now: JobSnapshot,
    before: JobSnapshot | None = None,
    *,
    firing: tuple[Alert, ...] = (),
    progress: Progress | None = None,
) -> NodeSnapshot:
    return NodeSnapshot(node=node, before=before, now=now, firing=firing, progress=progress)


class InMemoryNodeLooks:
    """`NodeLooks`. `tell` reaches everyone who follows; who begins to is told how it stands."""

    def __init__(self) -> None:
        self.sights: dict[str, NodeSnapshot] = {}
        self.silences: dict[str, NodeUnreachable] = {}
        self.happened: list[NodeEvents] = []
        self.followed: list[JobAttempt] = []
        """Every attempt that anyone began to follow, in turn."""
        self._following: list[asyncio.Queue[NodeNews]] = []

    @property
    def followers(self) -> int:
        return len(self._following)

    def tell(self, *news: NodeNews) -> None:
        for each in news:
            if isinstance(each, NodeMeasured):
                self.sights[each.snapshot.node] = each.snapshot
                self.silences.pop(each.snapshot.node, None)
            elif isinstance(each, NodeStale):
                self.silences[each.silence.node] = each.silence
            elif isinstance(each, NodeBack):
                self.silences.pop(each.node, None)
            for queue in self._following:
                queue.put_nowait(each)

    async def read(
        self,
        attempt: JobAttempt,  # noqa: ARG002
        *,
        only: Collection[str] | None = None,
        within_s: float = 3.0,  # noqa: ARG002
    ) -> tuple[tuple[NodeSnapshot, ...], tuple[NodeUnreachable, ...]]:
        return (
            tuple(
                each
                for node, each in self.sights.items()
                if node not in self.silences and (only is None or node in only)
            ),
            tuple(each for node, each in self.silences.items() if only is None or node in only),
        )

    async def events(
        self,
        attempt: JobAttempt,  # noqa: ARG002
        *,
        within_s: float = 3.0,  # noqa: ARG002
    ) -> tuple[tuple[NodeEvents, ...], tuple[NodeUnreachable, ...]]:
        known = tuple(each for each in self.happened if each.node not in self.silences)
        return known, tuple(self.silences.values())

    @asynccontextmanager
    async def follow(
        self,
        attempt: JobAttempt,
        *,
        alerts_only: bool = False,  # noqa: ARG002 - the port
    ) -> AsyncIterator[AsyncIterator[NodeNews]]:
        queue: asyncio.Queue[NodeNews] = asyncio.Queue()
        for each in self.sights.values():
            queue.put_nowait(NodeMeasured(each))
        for silence in self.silences.values():
            queue.put_nowait(NodeStale(silence))
        self.followed.append(attempt)
        self._following.append(queue)
        try:
            yield _each(queue)
        finally:
            self._following.remove(queue)


async def _each(queue: asyncio.Queue[NodeNews]) -> AsyncIterator[NodeNews]:
    while True:
        yield await queue.get()
