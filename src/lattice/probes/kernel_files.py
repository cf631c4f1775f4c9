"""Reads small kernel files and their numbers: shared by the probes.

`reading` turns every number into a `MetricReading`: an impossible value becomes an absence.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from lattice.domain.kerneltext import figure
from lattice.domain.metric import Absence, Labels, MetricReading, NotMeasured, Provenance, Sample
from lattice.domain.nodejobs import JobIdentity

_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,64}", re.ASCII)
MOST_PORTS = 64
LARGEST_FILE = 256 * 1024
_MOST_JOBS = 1024
_YOUNG_S = 10.0

_T = TypeVar("_T")


def reading(
    metric: str,
    value: float,
    time: float,
    labels: Labels = (),
    source: Provenance = Provenance.HOST_LOCAL_PROBE,
) -> MetricReading:
    """The sample; or, if the number can't be one, an absence with the reason."""
    try:
        return Sample(metric, value, time, source, labels)
    except NotMeasured as error:
        return Absence(metric, f"the kernel told what can't be: {error}", labels=labels)


def is_young(identity: JobIdentity, now: float) -> bool:
    """Whether a job has just started here, so some of its data may not exist yet."""
    return now - identity.started < _YOUNG_S


def read_text(path: str, most_bytes: int = LARGEST_FILE) -> str | None:
    """A small file as a whole; None if it does not exist, can't be read, or is no file.

    Also None if it is larger: a truncated file gives wrong counts.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        parts, left = [], most_bytes
        while left >= 0 and (part := os.read(file, 65536)):
            parts.append(part)
            left -= len(part)
    except OSError:  # a folder, or it was removed between the two calls
        return None
    finally:
        os.close(file)
    return b"".join(parts).decode("ascii", "replace") if left >= 0 else None


def figures(text: str | None) -> dict[str, int]:
    """Parses lines of a name and a number, as in `memory.stat`; skips others."""
    found: dict[str, int] = {}
    for line in (text or "").split("\n"):
        name, space, value = line.partition(" ")
        if space:
            number = figure(value)
            if number is not None:
                found.setdefault(name, number)
    return found


def names_in(folder: str) -> list[str]:
    """The sorted plain names in a folder; empty if there is no such folder."""
    try:
        found = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    return sorted(name for name in found if _NAME.fullmatch(name))[:MOST_PORTS]


def folders_in(folder: str) -> list[str]:
    """The names of the control groups in one; empty if it is gone."""
    # A control group counts its folders as links; listing one takes ten times as long.
    try:
        if os.stat(folder).st_nlink == 2:  # noqa: PTH116
            return []
        with os.scandir(folder) as entries:
            return [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def word(path: str) -> str:
    """The text of a one-line file; empty if it can't be read."""
    return (read_text(path, 256) or "").strip()


def number(path: str) -> float | None:
    """The count in a file; None if it has anything else."""
    found = figure(read_text(path, 256))
    return None if found is None else float(found)


def total(*counts: float | None) -> float | None:
    """The sum of the known values; None if there is none."""
    known = [each for each in counts if each is not None]
    return sum(known) if known else None


def carries(*counts: float | None) -> bool:
    """Whether a port was ever used: one without a cable is no link."""
    return any(each for each in counts)


class Carried:
    """A total over counters that come and go: it never falls.

    The last value of a part that is gone stays in the total. A part with a lower value was reset.
    """

    __slots__ = ("_gone", "_last")

    def __init__(self) -> None:
        self._last: dict[Hashable, int] = {}
        self._gone = 0

    def total(self, parts: Mapping[Hashable, int]) -> int:
        for part, before in self._last.items():
            if parts.get(part, -1) < before:
                self._gone += before
        self._last = dict(parts)
        return self._gone + sum(self._last.values())

    @property
    def known(self) -> bool:
        """Whether a part was ever seen."""
        return bool(self._last) or self._gone > 0


class OfJobs(Generic[_T]):
    """State of each job between readings; above the limit, the least recently used is removed."""

    def __init__(self, new: Callable[[], _T], most: int = _MOST_JOBS) -> None:
        self._new = new
        self._most = most
        self._states: OrderedDict[JobIdentity, _T] = OrderedDict()

    def __getitem__(self, identity: JobIdentity) -> _T:
        state = self._states.get(identity)
        if state is None:
            state = self._states[identity] = self._new()
            if len(self._states) > self._most:
                self._states.popitem(last=False)
        else:
            self._states.move_to_end(identity)
        return state
