"""The latency of the job's reads and writes: p50, p95 and p99. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from lattice.domain.measured import FIRST_READING
from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Targets, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    MissingObservation,
    Observation,
    findings,
    grown,
    largest_first,
    of_metric,
)
from lattice.features.diag.rules.mounts import format_seconds
from lattice.observe.conditions import is_io_slow

_SHARES = (0.5, 0.95, 0.99)


class IoLatency:
    """Reads the kernel's latency histogram, between two looks."""

    name, title, area, order = "io_latency", "Reads and writes, p99", Area.STORAGE, 190
    explains = frozenset({"data_loader", "straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        targets = case.targets
        judged = of_metric(case, "io_latency_seconds_bucket", partial(_judged, targets))
        template = FindingTemplate(
            target=targets.io_fault_p99_s,
            unit="s",
            remedy="`lattice diag ID --storage` shows which file system it is. Fewer and larger "
            "files, and local scratch (`sbatch --tmp`), wait less.",
        )
        yield from findings(self, case, largest_first(judged), template)


def _judged(
    targets: Targets, node: str, snapshot: NodeSnapshot, samples: Sequence[Sample]
) -> Iterator[Judged]:
    buckets = []
    for each in samples:
        more = grown(snapshot, each)
        if more is None:
            yield MissingObservation(node=node, reason=FIRST_READING, lack=Lack.TOO_EARLY)
            return
        buckets.append((float(each.label("le")), more))
    yield _one(node, sorted(buckets), targets)


def _one(node: str, counted: Sequence[tuple[float, float]], targets: Targets) -> Observation:
    """`counted` has the upper edges of the buckets in order, with cumulative counts."""
    total = counted[-1][1]
    if not total:
        return Observation(
            subject=Subject(node=node), evidence="nothing was read or written just now"
        )
    took = [_within(counted, share * total) for share in _SHARES]
    sick = is_io_slow(took[-1], total, targets.io_fault_p99_s, targets)
    names = ("p50", "p95", "p99")
    percentiles = ", ".join(
        f"{name} {_edge(each, counted)}" for name, each in zip(names, took, strict=True)
    )
    return Observation(
        subject=Subject(node=node),
        verdict=Verdict.ATTENTION if sick else Verdict.OK,
        measured=took[-1] if math.isfinite(took[-1]) else counted[-2][0],
        evidence=f"{percentiles} on {node}, of {total:.0f} reads and writes",
    )


def _within(counted: Sequence[tuple[float, float]], wanted: float) -> float:
    """Return the upper edge of the bucket that reaches this count."""
    return next((edge for edge, count in counted if count >= wanted), math.inf)


def _edge(edge: float, counted: Sequence[tuple[float, float]]) -> str:
    if math.isfinite(edge):
        return format_seconds(edge)
    return f"over {format_seconds(counted[-2][0])}" if len(counted) > 1 else "not told apart"
