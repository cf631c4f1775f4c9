"""How much a job has read and written, though its processes come and go. Pure.

The kernel keeps figures for each process: what it did itself, and what those did whom it reaped.
When a process is reaped, its figures are added to those of whoever reaped it, which is its parent
or, where that is gone, one above. Where nobody of the job reaps it (its parent ignores children,
or init has adopted it), its figures are lost.

The total is the sum over the processes that live, and what is carried of those that were lost. A
look explains who is gone by the growth of those above: if that is enough for all who are gone, all
were reaped. If it is not, each is carried who finds no growth as large as what it had when it was
last seen, in every figure.

Law. The total never falls. Where every process is reaped by one of the job's, and a look shows one
moment (the helper reads parents first, and again if one went meanwhile), the total is every byte of
those that live or were reaped, also of those whom nobody ever saw, and each once. Missing is what
processes had that were never seen, or never could be read, until they are reaped; so while one that
can't be read is there, `processes` tells no total. Where processes are lost, what
they had when last seen is in the total, but for one case: those above did at least as much
themselves, in the time between two looks, as all who are gone had ever done.
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
    """What one who is gone had, and who may have it now."""

    counted: IoCounters
    reaper: ProcessId


class IoLedger:
    """Of one job."""

    __slots__ = ("_carried", "_last")

    def __init__(self) -> None:
        self._last: dict[ProcessId, _Seen] = {}
        self._carried = _NOTHING

    @property
    def known(self) -> bool:
        """Whether anything was ever counted."""
        return bool(self._last) or any(self._carried)

    def look(self, processes: Iterable[ProcessCounters]) -> IoCounters:
        """The total with what is seen now."""
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
        """Elders first, because theirs is the surer claim; those with nobody above are carried."""
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
        """Whether the growth of those above is enough for everybody together."""
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
                parent = None  # another with the number of its parent
            before = self._last.get(each.process)
            if before is None or before.counted != each.counted or before.parent != parent:
                # One that is there and could not be read stands where it stood; nor can it fall.
                counted = _most(each.counted or _NOTHING, self._before(each.process))
                before = _Seen(counted, parent)
            seen[each.process] = before
        return seen

    def _before(self, process: ProcessId) -> IoCounters:
        seen = self._last.get(process)
        return seen.counted if seen is not None else _NOTHING

    def _settle(self, claim: _Claim, growth: dict[ProcessId, IoCounters]) -> None:
        """Explained by the growth of one above; else carried."""
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
