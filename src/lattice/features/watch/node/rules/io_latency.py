"""Slow reads and writes: by a fixed limit, or compared with this job's past. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator

from lattice.domain.alert import AlertRule
from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.features.watch.node.rules.finding import AlertFinding, AlertLevel, SnapshotWindow
from lattice.observe.conditions import is_io_slow, is_p99_known
from lattice.observe.thresholds import Thresholds

_SERIES = "io_latency_seconds_bucket"
_CLEAR = 0.8
_PAST_KEPT, _PAST_NEEDED = 30, 10
_US_PER_S = 1e6


class IoLatencyAlert:
    """The 99th percentile, between two snapshots.

    Its past is the median of the last snapshots that were not bad. So one slow snapshot does not
    move it, and lasting slowness does not become normal.
    """

    rule = AlertRule.IO_LATENCY

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._past_s: deque[float] = deque(maxlen=_PAST_KEPT)

    def look(self, glance: SnapshotWindow) -> Iterator[AlertFinding]:
        before, now = glance.before, glance.now
        buckets = glance.of(_SERIES)
        if not buckets:
            return
        done = _operations(before, now) if before is not None else None
        if done == 0:
            # Unused storage delays nobody.
            yield self._finding(AlertLevel.GOOD, None, self._limit_s(), "")
            return
        if before is None or done is None or not is_p99_known(done, self._thresholds):
            yield AlertFinding(level=AlertLevel.BETWEEN)
            return
        (shown,) = shown_of(Shown.IO_LATENCY_P99, before, now)
        if isinstance(shown, ShownValue):
            yield self._judged(shown.value / _US_PER_S, done)
            return
        edges = (float(each.label("le")) for each in buckets)
        longest = max((each for each in edges if math.isfinite(each)), default=0.0)
        words = f"p99 of reads and writes is longer than {longest * 1000:g} ms"
        yield self._finding(AlertLevel.BAD, None, self._thresholds.io_alert_p99_s, words)

    def _judged(self, p99_s: float, operations: float) -> AlertFinding:
        limit_s = self._limit_s()
        is_bad = is_io_slow(p99_s, operations, limit_s, self._thresholds)
        if not is_bad:
            self._past_s.append(p99_s)
        level = AlertLevel.BAD if is_bad else AlertLevel.BETWEEN
        if p99_s <= limit_s * _CLEAR:
            level = AlertLevel.GOOD
        words = f"p99 of reads and writes is {_ms(p99_s):.3g} ms"
        return self._finding(level, _ms(p99_s), limit_s, words)

    def _limit_s(self) -> float:
        """Return the fixed limit, or this job's jump limit if that is lower."""
        thresholds = self._thresholds
        if len(self._past_s) < _PAST_NEEDED:
            return thresholds.io_alert_p99_s
        jump_s = max(thresholds.io_jump_ratio * _median(self._past_s), thresholds.io_jump_least_s)
        return min(jump_s, thresholds.io_alert_p99_s)

    def _finding(
        self, level: AlertLevel, p99_ms: float | None, limit_s: float, words: str
    ) -> AlertFinding:
        told = f"{words or 'nothing was read or written'}; the bound is {_ms(limit_s):.3g} ms"
        if limit_s < self._thresholds.io_alert_p99_s:
            told += f", {self._thresholds.io_jump_ratio:g} times what is usual for this job"
        return AlertFinding(
            level=level,
            value=p99_ms,
            bound=_ms(limit_s),
            unit="ms",
            words=f"{told}.",
            remedy="Read and write fewer, larger pieces, or put what is used often on node-local "
            "storage; if nothing changed in the job, tell the site.",
        )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 6)


def _median(values: Collection[float]) -> float:
    # `statistics.median` imports `fractions`, which every node would keep in memory.
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return sum(middle) / len(middle)


def _operations(before: JobSnapshot, now: JobSnapshot) -> float | None:
    """Return the number between two snapshots; None if the counter was reset."""
    last = max(now.of(_SERIES), key=lambda each: float(each.label("le")))
    old = next((each.value for each in before.of(_SERIES) if each.labels == last.labels), None)
    if old is None or last.value < old or before.identity != now.identity:
        return None
    return last.value - old
