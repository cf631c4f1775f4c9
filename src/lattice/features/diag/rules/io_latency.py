"""The latency of the job's reads and writes: p50, p95 and p99. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lattice.domain.measured import FIRST_LOOK
from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Targets, Verdict
from lattice.features.diag.rules.mounting import time_words
from lattice.features.diag.rules.saying import (
    FindingTemplate,
    MissingObservation,
    Observation,
    findings,
    grown,
    of_metric,
)
from lattice.observe.conditions import is_io_slow

_SHARES = (0.5, 0.95, 0.99)


class IoLatency:
    """Reads the kernel's latency histogram, between two looks."""

    name, title, area, order = "io_latency", "Reads and writes, p99", Area.STORAGE, 190
    explains = frozenset({"data_loader", "straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        lacks: list[MissingObservation] = []
        targets, bound = case.targets, case.targets.io_fault_p99_s

        def judged(
            node: str, sight: NodeSnapshot, samples: Sequence[Sample]
        ) -> Iterator[Observation]:
            counted = _between(sight, samples)
            if counted is None:
                lacks.append(MissingObservation(node=node, reason=FIRST_LOOK, lack=Lack.TOO_EARLY))
            else:
                yield _one(node, counted, targets)

        seen, unseen = of_metric(case, "io_latency_seconds_bucket", judged)
        seen.sort(key=lambda each: each.measured or 0.0, reverse=True)
        line = FindingTemplate(
            target=bound,
            unit="s",
            remedy="`lattice diag ID --storage` shows which file system it is. Fewer and larger "
            "files, and local scratch (`sbatch --tmp`), wait less.",
        )
        yield from findings(self, case, seen, [*unseen, *lacks], line)


def _between(sight: NodeSnapshot, samples: Sequence[Sample]) -> list[tuple[float, float]] | None:
    """Return the upper edges of the buckets in order, with cumulative counts."""
    found = []
    for each in samples:
        more = grown(sight, each)
        if more is None:
            return None
        found.append((float(each.label("le")), more))
    return sorted(found)


def _one(node: str, counted: Sequence[tuple[float, float]], targets: Targets) -> Observation:
    total = counted[-1][1]
    if not total:
        return Observation(subject=Subject(node=node), words="nothing was read or written just now")
    took = [_within(counted, share * total) for share in _SHARES]
    sick = is_io_slow(took[-1], total, targets.io_fault_p99_s, targets)
    names = ("p50", "p95", "p99")
    words = ", ".join(
        f"{name} {_words(each, counted)}" for name, each in zip(names, took, strict=True)
    )
    return Observation(
        subject=Subject(node=node),
        verdict=Verdict.ATTENTION if sick else Verdict.OK,
        measured=took[-1] if math.isfinite(took[-1]) else counted[-2][0],
        words=f"{words} on {node}, of {total:.0f} reads and writes",
    )


def _within(counted: Sequence[tuple[float, float]], wanted: float) -> float:
    """Return the upper edge of the bucket that reaches this count."""
    return next((edge for edge, count in counted if count >= wanted), math.inf)


def _words(edge: float, counted: Sequence[tuple[float, float]]) -> str:
    if math.isfinite(edge):
        return time_words(edge)
    return f"over {time_words(counted[-2][0])}" if len(counted) > 1 else "not told apart"
