"""Samples that are not stored yet: 15 minutes in memory, oldest first.

A restart of the agent loses them; that is a visible gap in a curve. If there is no room, the oldest
are dropped and counted.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Labels, Provenance, Sample
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import NAN, JobColumns, SeriesColumn

SeriesKey: TypeAlias = tuple[str, Labels, Provenance]
Layout: TypeAlias = tuple[SeriesKey, ...]

RETENTION_S = 900.0
_SERIES_BYTES = 110
"""Approximate size of one series' names in a message."""
_BEFORE_MS = 500
"""A sample that was read earlier than this gets its own row."""
_MOST_LATE_MS = 65_535
MOST_SAMPLES = 1000
"""Most samples in one row: it must fit in a message."""
_ROW_BYTES = 400
_SAMPLE_BYTES = 10
_MOST_LAYOUTS = 1024


@dataclass(slots=True)
class SampleRow:
    """One job at one time, as numbers to save memory: the buffer holds thousands."""

    identity: JobIdentity
    time_ms: int
    layout: Layout
    values: array[float]
    late_ms: array[int]

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        return _ROW_BYTES + _SAMPLE_BYTES * len(self.values)


class Layouts:
    """Makes rows, and keeps each layout once: rows with the same series share their names.

    A sample that was read well before its time gets a row at its own time; vendor tools may return
    cached values.
    """

    def __init__(self) -> None:
        self._known: dict[Layout, Layout] = {}

    def rows_of(self, snapshot: JobSnapshot, samples: Sequence[Sample]) -> list[SampleRow]:
        """Return the rows of these samples, older ones first."""
        time_ms = round(snapshot.time * 1000)
        timely: list[Sample] = []
        older: list[Sample] = []
        for each in samples:
            (timely if each.time * 1000 >= time_ms - _BEFORE_MS else older).append(each)
        rows = []
        for moment_ms, of_then in groupby(sorted(older, key=_read_ms), key=_read_ms):
            rows.append(self._row(snapshot, moment_ms, list(of_then)))
        return rows + [
            self._row(snapshot, time_ms, timely[begin : begin + MOST_SAMPLES])
            for begin in range(0, len(timely), MOST_SAMPLES)
        ]

    def _row(self, snapshot: JobSnapshot, time_ms: int, samples: Sequence[Sample]) -> SampleRow:
        layout = tuple((each.metric, each.labels, each.source) for each in samples)
        if len(self._known) >= _MOST_LAYOUTS:
            self._known.clear()
        return SampleRow(
            snapshot.identity,
            time_ms,
            self._known.setdefault(layout, layout),
            array("d", (each.value for each in samples)),
            array("H", (_late_ms(each, time_ms) for each in samples)),
        )


class SampleBuffer:
    """Holds rows. Used from the event loop only."""

    def __init__(
        self, now: Callable[[], float], most_bytes: int, *, retention_s: float = RETENTION_S
    ) -> None:
        self._now = now
        self._most_bytes = most_bytes
        self._retention_ms = retention_s * 1000
        self._layouts = Layouts()
        self._rows: deque[SampleRow] = deque()
        self._some = asyncio.Event()
        self.size_bytes = 0
        self.lost_total = 0
        """Samples that were dropped for lack of room, or because they waited too long."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def samples(self) -> int:
        """Number of samples that wait."""
        return sum(len(row.values) for row in self._rows)

    def add(self, snapshot: JobSnapshot) -> None:
        for row in self._layouts.rows_of(snapshot, snapshot.samples):
            self._rows.append(row)
            self.size_bytes += row.size_bytes
        self._drop()
        if self._rows:
            self._some.set()

    async def some(self) -> None:
        """Wait until there is a row."""
        await self._some.wait()

    def take(
        self, most_bytes: int, wanted: Callable[[SampleRow], bool] | None = None
    ) -> list[SampleRow]:
        """Remove and return the oldest rows that fit in a message. `give_back` returns them.

        Rows that are not `wanted` stay in place.
        """
        taken: list[SampleRow] = []
        passed: list[SampleRow] = []
        named: set[tuple[object, int]] = set()
        left = most_bytes
        while self._rows:
            row = self._rows[0]
            if wanted is not None and not wanted(row):
                passed.append(self._rows.popleft())
                continue
            key = (row.identity, id(row.layout))
            cost = len(row.values) * (10 if key in named else 10 + _SERIES_BYTES)
            if taken and cost > left:
                break
            left -= cost
            named.add(key)
            taken.append(self._rows.popleft())
            self.size_bytes -= row.size_bytes
        self._rows.extendleft(reversed(passed))
        self._settle()
        return taken

    def give_back(self, rows: Sequence[SampleRow]) -> None:
        """Put rows back at the front: they were not stored."""
        self._rows.extendleft(reversed(rows))
        self.size_bytes += sum(row.size_bytes for row in rows)
        self._drop()
        self._settle()

    def shift(self, by_s: float) -> None:
        """Correct the times of waiting rows once the servers' time is known."""
        for row in self._rows:
            row.time_ms += round(by_s * 1000)

    def _drop(self) -> None:
        oldest_ms = self._now() * 1000 - self._retention_ms
        rows = self._rows
        while rows and (self.size_bytes > self._most_bytes or rows[0].time_ms < oldest_ms):
            row = rows.popleft()
            self.size_bytes -= row.size_bytes
            self.lost_total += len(row.values)

    def _settle(self) -> None:
        if self._rows:
            self._some.set()
        else:
            self._some.clear()


def columns_of(rows: Sequence[SampleRow], began: float) -> JobColumns:
    """Convert rows of one run of a job into columns; `began` is by the servers' clock."""
    ordered = sorted(rows, key=lambda row: row.time_ms)
    times_ms = tuple(sorted({row.time_ms for row in ordered}))
    layout = ordered[0].layout
    if len(times_ms) == len(ordered) and all(row.layout is layout for row in ordered):
        values = zip(*(row.values for row in ordered), strict=True)
        late = zip(*(row.late_ms for row in ordered), strict=True)
        series = tuple(
            SeriesColumn(*key, each, late_ms)
            for key, each, late_ms in zip(layout, values, late, strict=True)
        )
    else:
        series = _spread(ordered, {time_ms: index for index, time_ms in enumerate(times_ms)})
    return JobColumns(ordered[0].identity.job_id, began, times_ms, series)


def _spread(rows: Sequence[SampleRow], indexes: Mapping[int, int]) -> tuple[SeriesColumn, ...]:
    """For rows with different series, or several rows of one time."""
    values: dict[SeriesKey, list[float]] = {}
    late: dict[SeriesKey, list[int]] = {}
    for row in rows:
        index = indexes[row.time_ms]
        for key, value, late_ms in zip(row.layout, row.values, row.late_ms, strict=True):
            if key not in values:
                values[key], late[key] = [NAN] * len(indexes), [0] * len(indexes)
            values[key][index], late[key][index] = value, late_ms
    return tuple(SeriesColumn(*key, each, late[key]) for key, each in values.items())


def _read_ms(sample: Sample) -> int:
    return round(sample.time * 1000)


def _late_ms(sample: Sample, time_ms: int) -> int:
    return max(0, min(_MOST_LATE_MS, _read_ms(sample) - time_ms))
