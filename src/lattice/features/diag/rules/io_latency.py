"""How long the job's reads and writes take: half of them, 95 and 99 of a hundred. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lattice.domain.measured import FIRST_LOOK
from lattice.domain.metric import Sample
from lattice.domain.nodelook import NodeSight
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.mounting import time_words
from lattice.features.diag.rules.saying import Line, Seen, Unseen, findings, grown, of_metric

_SHARES = (0.5, 0.95, 0.99)
_FEWEST = 20.0


class IoLatency:
    """Reads the kernel's own timing, in classes of time, between two looks."""

    name, title, area = "io_latency", "Reads and writes, p99", Area.STORAGE
    explains = frozenset({"data_loader", "straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        lacks: list[Unseen] = []
        bound = case.targets.io_p99_s

        def judged(node: str, sight: NodeSight, samples: Sequence[Sample]) -> Iterator[Seen]:
            counted = _between(sight, samples)
            if counted is None:
                lacks.append(Unseen(node=node, reason=FIRST_LOOK, lack=Lack.TOO_EARLY))
            else:
                yield _one(node, counted, bound)

        seen, unseen = of_metric(case, "io_latency_seconds_bucket", judged)
        seen.sort(key=lambda each: each.measured or 0.0, reverse=True)
        line = Line(
            target=bound,
            unit="s",
            remedy="`lattice diag ID --storage` shows which file system it is. Fewer and larger "
            "files, and local scratch (`sbatch --tmp`), wait less.",
        )
        yield from findings(self, case, seen, [*unseen, *lacks], line)


def _between(sight: NodeSight, samples: Sequence[Sample]) -> list[tuple[float, float]] | None:
    """Edges of the classes in order, each with how many took at most so long."""
    found = []
    for each in samples:
        more = grown(sight, each)
        if more is None:
            return None
        found.append((float(each.label("le")), more))
    return sorted(found)


def _one(node: str, counted: Sequence[tuple[float, float]], bound: float) -> Seen:
    total = counted[-1][1]
    if not total:
        return Seen(subject=Subject(node=node), words="nothing was read or written just now")
    took = [_within(counted, share * total) for share in _SHARES]
    sick = total >= _FEWEST and took[-1] > bound
    names = ("p50", "p95", "p99")
    words = ", ".join(
        f"{name} {_words(each, counted)}" for name, each in zip(names, took, strict=True)
    )
    return Seen(
        subject=Subject(node=node),
        verdict=Verdict.ATTENTION if sick else Verdict.OK,
        measured=took[-1] if math.isfinite(took[-1]) else counted[-2][0],
        words=f"{words} on {node}, of {total:.0f} reads and writes",
    )


def _within(counted: Sequence[tuple[float, float]], wanted: float) -> float:
    """The upper edge of the class in which so many are reached."""
    return next((edge for edge, count in counted if count >= wanted), math.inf)


def _words(edge: float, counted: Sequence[tuple[float, float]]) -> str:
    if math.isfinite(edge):
        return time_words(edge)
    return f"over {time_words(counted[-2][0])}" if len(counted) > 1 else "not told apart"
