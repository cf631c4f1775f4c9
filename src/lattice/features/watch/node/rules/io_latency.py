"""Reads and writes that take long: by the clock, or by what this job is used to. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator

from lattice.domain.alert import Rule
from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.rules.finding import Finding, Glance, Level

_SERIES = "io_latency_seconds_bucket"
_CLEAR = 0.8
_PAST_KEPT, _PAST_NEEDED = 30, 10
_US_PER_MS = 1000.0


class IoLatency:
    """The 99th of a hundred, between two looks.

    Its past is the median of the last looks that were not bad: one slow look does not move it, and
    a slowness that lasts does not become the usual by lasting.
    """

    rule = Rule.IO_LATENCY

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._past_ms: deque[float] = deque(maxlen=_PAST_KEPT)

    def look(self, glance: Glance) -> Iterator[Finding]:
        before, now = glance.before, glance.now
        buckets = glance.of(_SERIES)
        if not buckets:
            return
        done = _operations(before, now) if before is not None else None
        if before is None or done is None or 0 < done < self._bounds.io_least_operations:
            yield Finding(level=Level.BETWEEN)
            return
        if done == 0:
            # Nobody waits for storage that is not used.
            yield self._finding(Level.GOOD, None, self._bound_ms(), "")
            return
        (shown,) = shown_of(Shown.IO_LATENCY_P99, before, now)
        if isinstance(shown, ShownValue):
            yield self._judged(shown.value / _US_PER_MS)
            return
        edges = (float(each.label("le")) for each in buckets)
        longest = max((each for each in edges if math.isfinite(each)), default=0.0)
        words = f"p99 of reads and writes is longer than {longest * 1000:g} ms"
        yield self._finding(Level.BAD, None, self._bounds.io_p99_ms, words)

    def _judged(self, p99_ms: float) -> Finding:
        bound = self._bound_ms()
        is_bad = p99_ms > bound
        if not is_bad:
            self._past_ms.append(p99_ms)
        level = Level.BAD if is_bad else Level.BETWEEN
        if p99_ms <= bound * _CLEAR:
            level = Level.GOOD
        return self._finding(level, p99_ms, bound, f"p99 of reads and writes is {p99_ms:.3g} ms")

    def _bound_ms(self) -> float:
        """The fixed one, or what is a jump for this job if that is less."""
        if len(self._past_ms) < _PAST_NEEDED:
            return self._bounds.io_p99_ms
        jump = max(self._bounds.io_jump * _median(self._past_ms), self._bounds.io_jump_from_ms)
        return min(jump, self._bounds.io_p99_ms)

    def _finding(self, level: Level, p99_ms: float | None, bound: float, words: str) -> Finding:
        told = f"{words or 'nothing was read or written'}; the bound is {bound:.3g} ms"
        if bound < self._bounds.io_p99_ms:
            told += f", {self._bounds.io_jump:g} times what is usual for this job"
        return Finding(
            level=level,
            value=p99_ms,
            bound=bound,
            unit="ms",
            words=f"{told}.",
            remedy="Read and write fewer, larger pieces, or put what is used often on node-local "
            "storage; if nothing changed in the job, tell the site.",
        )


def _median(values: Collection[float]) -> float:
    # The one of the standard library brings fractions along, which every node would keep in memory.
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return sum(middle) / len(middle)


def _operations(before: JobSnapshot, now: JobSnapshot) -> float | None:
    """How many were counted between two looks; None if the counter began anew."""
    last = max(now.of(_SERIES), key=lambda each: float(each.label("le")))
    old = next((each.value for each in before.of(_SERIES) if each.labels == last.labels), None)
    if old is None or last.value < old or before.identity != now.identity:
        return None
    return last.value - old
