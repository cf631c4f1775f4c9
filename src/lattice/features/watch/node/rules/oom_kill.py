"""The kernel killed a process of the job for want of memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import Rule, Severity
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.rules.finding import Finding, Glance, Level
from lattice.features.watch.node.rules.rises import Rises

_SERIES = "memory_oom_kills_total"
_GIB = 1024.0**3


class OomKill:
    """Fires when the count rises; passes when it has not for a while."""

    rule = Rule.OOM_KILL

    def __init__(self, bounds: Bounds) -> None:
        self._rises = Rises(bounds.event_kept_s)

    def look(self, glance: Glance) -> Iterator[Finding]:
        found = glance.of(_SERIES)
        if not found:
            return
        self._rises.look({"": sum(each.value for each in found)}, glance.time)
        rise = self._rises.standing("", glance.time)
        if rise is None:
            yield Finding(level=Level.GOOD, words="No process was killed again.")
            return
        limits = glance.of("memory_limit_bytes")
        limit = f" at its limit of {limits[0].value / _GIB:.3g} GiB" if limits else ""
        count = f"{rise.count:.0f} processes were" if rise.count > 1 else "A process was"
        yield Finding(
            level=Level.BAD,
            severity=Severity.CRITICAL,
            value=rise.count,
            bound=0.0,
            since=rise.first,
            words=f"{count} killed for want of memory{limit}.",
            remedy="Ask for more memory (`--mem`, or `--mem-per-cpu`), or use less: fewer loader "
            "workers, smaller batches.",
        )
