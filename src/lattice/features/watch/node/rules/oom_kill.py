"""The kernel killed a process of the job for lack of memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import AlertRule, Severity
from lattice.features.watch.node.rules.finding import AlertFinding, AlertLevel, SnapshotWindow
from lattice.features.watch.node.rules.rises import Rises
from lattice.observe.conditions import oom_kills
from lattice.observe.thresholds import Thresholds

_SERIES = "memory_oom_kills_total"
_GIB = 1024.0**3


class OomKillAlert:
    """Fires when the count rises; clears when it has not risen for a while."""

    rule = AlertRule.OOM_KILL

    def __init__(self, thresholds: Thresholds) -> None:
        self._rises = Rises(thresholds.event_clear_s)

    def look(self, glance: SnapshotWindow) -> Iterator[AlertFinding]:
        found = glance.of(_SERIES)
        if not found:
            return
        self._rises.look({"": oom_kills(each.value for each in found)}, glance.time)
        rise = self._rises.standing("", glance.time)
        if rise is None:
            yield AlertFinding(level=AlertLevel.GOOD, words="No process was killed again.")
            return
        limits = glance.of("memory_limit_bytes")
        limit = f" at its limit of {limits[0].value / _GIB:.3g} GiB" if limits else ""
        count = f"{rise.count:.0f} processes were" if rise.count > 1 else "A process was"
        yield AlertFinding(
            level=AlertLevel.BAD,
            severity=Severity.CRITICAL,
            value=rise.count,
            bound=0.0,
            since=rise.first,
            words=f"{count} killed for want of memory{limit}.",
            remedy="Ask for more memory (`--mem`, or `--mem-per-cpu`), or use less: fewer loader "
            "workers, smaller batches.",
        )
