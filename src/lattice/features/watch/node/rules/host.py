"""Rules about the node: slow storage, network errors, and kills for lack of memory. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator

from lattice.domain.alert import AlertRule, Severity
from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.domain.metric import Sample
from lattice.features.watch.node.rules.rule import AlertFinding, AlertLevel, Rises, SnapshotWindow
from lattice.observe.conditions import (
    is_io_slow,
    is_network_lossy,
    is_p99_known,
    oom_kills,
    packet_error_percent,
)
from lattice.observe.thresholds import Thresholds

_OOM_SERIES = "memory_oom_kills_total"
_GIB = 1024.0**3
_LOSS_CLEAR = 0.5
_JOB = "job"
_LATENCY_SERIES = "io_latency_seconds_bucket"
_LATENCY_CLEAR = 0.8
_PAST_LENGTH, _PAST_NEEDED = 30, 10
_US_PER_S = 1e6


class IoLatencyAlert:
    """Slow reads and writes: by a fixed limit, or compared with this job's past.

    The value is the 99th percentile, between two snapshots. Its past is the median of the last
    snapshots that were not bad. So one slow snapshot does not move it, and lasting slowness does
    not become normal.
    """

    rule = AlertRule.IO_LATENCY

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._past_s: deque[float] = deque(maxlen=_PAST_LENGTH)

    def check(self, window: SnapshotWindow) -> Iterator[AlertFinding]:
        before, now = window.before, window.now
        buckets = window.of(_LATENCY_SERIES)
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
        text = f"p99 of reads and writes is longer than {longest * 1000:g} ms"
        yield self._finding(AlertLevel.BAD, None, self._thresholds.io_alert_p99_s, text)

    def _judged(self, p99_s: float, operations: float) -> AlertFinding:
        limit_s = self._limit_s()
        is_bad = is_io_slow(p99_s, operations, limit_s, self._thresholds)
        if not is_bad:
            self._past_s.append(p99_s)
        level = AlertLevel.BAD if is_bad else AlertLevel.BETWEEN
        if p99_s <= limit_s * _LATENCY_CLEAR:
            level = AlertLevel.GOOD
        text = f"p99 of reads and writes is {_ms(p99_s):.3g} ms"
        return self._finding(level, _ms(p99_s), limit_s, text)

    def _limit_s(self) -> float:
        """Return the fixed limit, or this job's jump limit if that is lower."""
        thresholds = self._thresholds
        if len(self._past_s) < _PAST_NEEDED:
            return thresholds.io_alert_p99_s
        jump_s = max(thresholds.io_jump_ratio * _median(self._past_s), thresholds.io_jump_least_s)
        return min(jump_s, thresholds.io_alert_p99_s)

    def _finding(
        self, level: AlertLevel, p99_ms: float | None, limit_s: float, measured: str
    ) -> AlertFinding:
        text = f"{measured or 'nothing was read or written'}; the bound is {_ms(limit_s):.3g} ms"
        if limit_s < self._thresholds.io_alert_p99_s:
            text += f", {self._thresholds.io_jump_ratio:g} times what is usual for this job"
        return AlertFinding(
            level=level,
            value=p99_ms,
            bound=_ms(limit_s),
            unit="ms",
            text=f"{text}.",
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
    last = max(now.of(_LATENCY_SERIES), key=lambda each: float(each.label("le")))
    old = next(
        (each.value for each in before.of(_LATENCY_SERIES) if each.labels == last.labels), None
    )
    if old is None or last.value < old or before.identity != now.identity:
        return None
    return last.value - old


class NetworkErrors:
    """Packets lost to errors, as a share of all between two snapshots.

    Uses the job's own packets if they are counted, else the whole node's.
    """

    rule = AlertRule.NETWORK_ERRORS

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._bound = thresholds.network_error_percent
        self._last: dict[str, tuple[float, float]] = {}

    def check(self, window: SnapshotWindow) -> Iterator[AlertFinding]:
        packets = {each.label("scope"): each for each in window.of("network_packets_total")}
        errors = {each.label("scope"): each for each in window.of("network_errors_total")}
        scopes = sorted(packets.keys() & errors.keys(), key=lambda each: (each != _JOB, each))
        if scopes:
            yield self._judged(scopes[0], packets[scopes[0]], errors[scopes[0]])

    def _judged(self, scope: str, packets: Sample, errors: Sample) -> AlertFinding:
        last = self._last.get(scope)
        self._last = {scope: (packets.value, errors.value)}
        if last is None:
            return AlertFinding(level=AlertLevel.BETWEEN)
        sent, lost = packets.value - last[0], errors.value - last[1]
        restarted = sent < 0 or lost < 0
        share = None if restarted else packet_error_percent(lost, sent, self._thresholds)
        if share is None:
            return AlertFinding(level=AlertLevel.BETWEEN)
        level = AlertLevel.BAD if is_network_lossy(share, self._thresholds) else AlertLevel.BETWEEN
        if share <= self._bound * _LOSS_CLEAR:
            level = AlertLevel.GOOD
        return self._finding(level, share, scope)

    def _finding(self, level: AlertLevel, share: float, scope: str) -> AlertFinding:
        owner = "" if scope == _JOB else " of the whole node"
        return AlertFinding(
            level=level,
            value=share,
            bound=self._bound,
            unit="%",
            text=f"{share:.2g} % of the packets{owner} were lost to errors; "
            f"the bound is {self._bound:g} %.",
            remedy="Tell the site: a cable, a port or a driver is at fault, not the job.",
        )


class OomKillAlert:
    """The kernel killed a process of the job for lack of memory.

    Fires when the count rises; clears when it has not risen for a while.
    """

    rule = AlertRule.OOM_KILL

    def __init__(self, thresholds: Thresholds) -> None:
        self._rises = Rises(thresholds.event_clear_s)

    def check(self, window: SnapshotWindow) -> Iterator[AlertFinding]:
        found = window.of(_OOM_SERIES)
        if not found:
            return
        self._rises.record({"": oom_kills(each.value for each in found)}, window.time)
        rise = self._rises.standing("", window.time)
        if rise is None:
            yield AlertFinding(level=AlertLevel.GOOD, text="No process was killed again.")
            return
        limits = window.of("memory_limit_bytes")
        limit = f" at its limit of {limits[0].value / _GIB:.3g} GiB" if limits else ""
        count = f"{rise.count:.0f} processes were" if rise.count > 1 else "A process was"
        yield AlertFinding(
            level=AlertLevel.BAD,
            severity=Severity.CRITICAL,
            value=rise.count,
            bound=0.0,
            since=rise.first,
            text=f"{count} killed for want of memory{limit}.",
            remedy="Ask for more memory (`--mem`, or `--mem-per-cpu`), or use less: fewer loader "
            "workers, smaller batches.",
        )
