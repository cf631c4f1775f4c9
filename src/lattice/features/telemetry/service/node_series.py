"""The series that one node has declared on its stream, with labels that are encoded once.

The owner's labels are made from Slurm's data, and made again when that has changed. So the check of
a row costs little more than a look-up, and holds for as long as the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from struct import pack
from typing import TypeAlias

from lattice.domain.attempts import JobAttempt
from lattice.features.telemetry.convert.batches import BadSamples
from lattice.features.telemetry.convert.rows import (
    MOST_LAYOUTS,
    MOST_ROWS,
    MOST_SERIES,
    DeclaredLayout,
    sample_count,
)
from lattice.features.telemetry.convert.stamps import series_labels, stamps_of
from lattice.features.telemetry.service.sample_guard import (
    OUTSIDE,
    RefusalTally,
    SampleGuard,
    SampleRefused,
)
from lattice.wire.remotewrite import Row, WriteEncoder
from lattice.wire.v1 import telemetry_pb2 as pb

_Encoded: TypeAlias = tuple[bytes, int]
"""A `WriteRequest`, and how many samples it has."""


class NodeSeries:
    """The layouts of one node, by its own numbers."""

    def __init__(self, node: str, guard: SampleGuard, encoder: WriteEncoder) -> None:
        self.node = node
        self._guard = guard
        self._encoder = encoder
        self._layouts: dict[int, _StampedLayout] = {}
        self._size = 0

    async def encoded(self, message: pb.SampleRows, tally: RefusalTally) -> _Encoded:
        """Encode the rows of a message that may be stored. Raises `Unavailable`."""
        if message.anew:
            self._layouts.clear()
            self._size = 0
        for declared in message.layouts:
            self._declare(declared, tally)
        parts, samples = [], 0
        tally.add(
            sum(map(sample_count, message.rows[MOST_ROWS:])), "of more rows than a message has"
        )
        for number, rows in _together(message.rows[:MOST_ROWS], self._layouts):
            layout = self._layouts.get(number)
            if layout is None:
                tally.add(sum(map(sample_count, rows)), "of series that were not declared")
                continue
            try:
                attempt = await self._guard.attempt(self.node, layout.job_id, layout.started)
            except SampleRefused as refusal:
                tally.add(sum(map(sample_count, rows)), str(refusal))
                continue
            layout.stamp(attempt, self.node)
            request, count = layout.encoded(rows, self._guard.moments(attempt), tally)
            parts.append(request)
            samples += count
        return b"".join(parts), samples

    def _declare(self, message: pb.SeriesLayout, tally: RefusalTally) -> None:
        replaced = self._layouts.pop(message.number, None)
        self._size -= replaced.size if replaced is not None else 0
        # Rows of a layout that is not taken are refused, and counted then.
        if len(self._layouts) >= MOST_LAYOUTS or self._size + len(message.series) > MOST_SERIES:
            tally.reason = tally.reason or "of more series than a node can have"
            return
        try:
            layout = _StampedLayout(message, self._encoder)
        except BadSamples as fault:
            tally.reason = tally.reason or str(fault)
            return
        self._layouts[message.number] = layout
        self._size += layout.size


def _together(
    rows: Iterable[pb.SampleRow], layouts: Mapping[int, _StampedLayout]
) -> Iterable[tuple[int, list[pb.SampleRow]]]:
    """Join rows of one layout, but keep the order of each job's moments."""
    found: list[tuple[int, list[pb.SampleRow]]] = []
    newest: dict[tuple[int, float], tuple[int, list[pb.SampleRow]]] = {}
    for row in rows:
        layout = layouts.get(row.layout)
        key = (layout.job_id, layout.started) if layout is not None else (0, 0.0)
        joined = newest.get(key)
        if joined is None or joined[0] != row.layout:
            joined = newest[key] = (row.layout, [])
            found.append(joined)
        joined[1].append(row)
    return found


class _StampedLayout:
    """A layout with its owner's labels."""

    def __init__(self, message: pb.SeriesLayout, encoder: WriteEncoder) -> None:
        """Raises `BadSamples`."""
        self._declared = DeclaredLayout(message)
        self._encoder = encoder
        self._attempt: JobAttempt | None = None
        self._owner_labels: dict[str, str] = {}
        self._prepared = encoder.prepare(())
        self.job_id, self.started = self._declared.job_id, self._declared.started
        self.size = len(self._declared.series)

    def stamp(self, attempt: JobAttempt, node: str) -> None:
        """Take the owner's labels from this attempt."""
        if attempt is self._attempt:
            return
        self._attempt = attempt
        owner_labels = stamps_of(attempt).on(node)
        if owner_labels == self._owner_labels:
            return
        self._owner_labels = owner_labels
        self._prepared = self._encoder.prepare(
            series_labels(each.metric, each.labels, each.source, owner_labels)
            for each in self._declared.series
        )

    def encoded(
        self, rows: Iterable[pb.SampleRow], moments: tuple[float, float], tally: RefusalTally
    ) -> _Encoded:
        """Encode what is valid and lies between these moments."""
        first_ms, last_ms = (each * 1000 for each in moments)
        whole: list[Row] = []
        parts: list[bytes] = []
        samples = 0
        for row in rows:
            try:
                packed, values, times_ms = self._declared.unpack(row)
            except BadSamples as fault:
                tally.add(sample_count(row), str(fault))
                continue
            fine = [
                0.0 <= value <= most and first_ms <= time_ms <= last_ms
                for value, most, time_ms in zip(values, self._declared.most, times_ms, strict=True)
            ]
            samples += sum(fine)
            if all(fine):
                whole.append((packed, times_ms))
                continue
            tally.add(fine.count(False), self._fault(values, fine))
            parts.append(self._prepared.encode(whole))
            whole.clear()
            parts.append(self._some(values, times_ms, fine))
        parts.append(self._prepared.encode(whole))
        return b"".join(parts), samples

    def _some(
        self, values: Sequence[float], times_ms: Sequence[int], fine: Sequence[bool]
    ) -> bytes:
        chosen = tuple(compress(values, fine))
        row = pack(f"<{len(chosen)}d", *chosen), tuple(compress(times_ms, fine))
        return self._prepared.only(fine).encode([row])

    def _fault(self, values: Sequence[float], fine: Sequence[bool]) -> str:
        """Why the first of the refused values is refused."""
        index = fine.index(False)
        series = self._declared.series[index]
        if series.fault:
            return series.fault
        if not 0.0 <= values[index] <= series.most:
            return f"a value that {series.metric} can't have"
        return OUTSIDE
