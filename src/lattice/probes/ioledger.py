"""How much a job has read and written, while its processes come and go. Pure.

The kernel's counters of a process include its own work and that of the children it reaped. When a
process is reaped, its counters are added to those of the reaper: its parent or, if that is gone, an
ancestor. If no process of the job reaps it, its counters are lost: its parent ignores children, or
init has adopted it.

The total is the sum over the living processes, plus the carried counters of lost ones. Each reading
compares the gone processes with the growth of their ancestors. If that is enough for all of them,
all were reaped. If not, each gone process needs an ancestor that grew by at least its last
counters. Without one, its last counters are carried.

Invariants. The total never falls. Assume that processes of the job reap every process, and that a
reading shows one moment. The helper reads parents first, and again if one ended meanwhile. Then the
total has every byte of living and reaped processes once, also of processes that were never seen.
Counters of a process that was never seen or readable are missing until it is reaped. So `processes`
reports no total while one can't be read. If processes are lost, their last counters are in the
total, except in one case. In that case their ancestors themselves did at least as much between two
readings as all gone processes ever did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lattice.domain.counters import IoCounters, ProcessCounters
from lattice.domain.nodejobs import ProcessId

_NOTHING = IoCounters(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Seen:
    counted: IoCounters
    parent: ProcessId | None


@dataclass(frozen=True, slots=True)
class _Claim:
    """The counters of a process that is gone, and the process that may have them now."""

    counted: IoCounters
    reaper: ProcessId


class IoLedger:
    """The ledger of one job."""

    __slots__ = ("_carried", "_last")

    def __init__(self) -> None:
        self._last: dict[ProcessId, _Seen] = {}
        self._carried = _NOTHING

    @property
    def known(self) -> bool:
        """Whether anything was ever counted."""
        return bool(self._last) or any(self._carried)

    def update(self, processes: Iterable[ProcessCounters]) -> IoCounters:
        """The total after this reading."""
        now = self._seen(processes)
        claims = self._gone(now)
        if claims:
            growth = {each: _less(seen.counted, self._before(each)) for each, seen in now.items()}
            if not self._explained(claims, growth):
                for claim in claims:
                    self._settle(claim, growth)
        self._last = now
        rows = (self._carried, *(seen.counted for seen in now.values()))
        return IoCounters(*map(sum, zip(*rows, strict=True)))

    def _gone(self, now: Mapping[ProcessId, _Seen]) -> list[_Claim]:
        """Oldest first: their claims are more certain. Those without a parent are carried."""
        gone = sorted(self._last.keys() - now.keys(), key=lambda each: each.start_ticks)
        gone.sort(key=lambda each: self._last[each].parent not in now)
        claims = []
        for each in gone:
            seen = self._last[each]
            if seen.parent is None:
                self._carried = _sum(self._carried, seen.counted)
            else:
                claims.append(_Claim(seen.counted, seen.parent))
        return claims

    def _explained(self, claims: Iterable[_Claim], growth: Mapping[ProcessId, IoCounters]) -> bool:
        """Whether the growth of the ancestors is enough for all claims together."""
        left = dict(growth)
        for claim in claims:
            needed = claim.counted
            for reaper in self._ancestors(claim.reaper):
                if reaper in left:
                    taken = _least(needed, left[reaper])
                    needed, left[reaper] = _less(needed, taken), _less(left[reaper], taken)
            if any(needed):
                return False
        return True

    def _seen(self, processes: Iterable[ProcessCounters]) -> dict[ProcessId, _Seen]:
        listed = list(processes)
        by_pid = {each.process.pid: each.process for each in listed}
        seen = {}
        for each in listed:
            parent = by_pid.get(each.parent)
            if parent is not None and parent.start_ticks > each.process.start_ticks:
                parent = None  # its parent's pid was reused
            before = self._last.get(each.process)
            if before is None or before.counted != each.counted or before.parent != parent:
                # An unreadable process retains its counters, and counters never fall.
                counted = _most(each.counted or _NOTHING, self._before(each.process))
                before = _Seen(counted, parent)
            seen[each.process] = before
        return seen

    def _before(self, process: ProcessId) -> IoCounters:
        seen = self._last.get(process)
        return seen.counted if seen is not None else _NOTHING

    def _settle(self, claim: _Claim, growth: dict[ProcessId, IoCounters]) -> None:
        """Subtract it from the growth of an ancestor, or carry it."""
        for reaper in self._ancestors(claim.reaper):
            if reaper in growth:
                left = _less(growth[reaper], claim.counted)
                if min(left) >= 0:
                    growth[reaper] = left
                    return
        self._carried = _sum(self._carried, claim.counted)

    def _ancestors(self, process: ProcessId | None) -> Iterator[ProcessId]:
        for _ in range(len(self._last) + 1):
            if process is None:
                return
            yield process
            seen = self._last.get(process)
            process = seen.parent if seen is not None else None


def _sum(one: IoCounters, other: IoCounters) -> IoCounters:
    return IoCounters(*map(int.__add__, one, other))


def _less(one: IoCounters, other: IoCounters) -> IoCounters:
    return IoCounters(*map(int.__sub__, one, other))


def _most(one: IoCounters, other: IoCounters) -> IoCounters:
    return IoCounters(*map(max, one, other))


def _least(one: IoCounters, other: IoCounters) -> IoCounters:
    return IoCounters(*map(min, one, other))
