"""Rows on their way out of the buffer, in the form of each receiver. No I/O.

Servers get rows of numbers on a stream, with the names of series only once. Servers of the release
before, and the metric store itself, get columns with the names in every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import (
    JobColumns,
    add_labels,
    batch_message,
    little_endian,
)
from lattice.features.telemetry.convert.rows import MOST_LAYOUTS, MOST_ROWS, MOST_SERIES
from lattice.features.telemetry.node.buffer import Layout, SampleRow, columns_of
from lattice.wire.v1 import telemetry_pb2 as pb

LARGEST_BYTES = 240 * 1024
"""The limit of a message on an agent's link, less some room."""
_ROW_BYTES = 24
_LAYOUT_BYTES = 24
_SERIES_BYTES = 12
_LABEL_BYTES = 6
"""What a row, a layout, a series and a label take besides their numbers and texts, at most."""

_Key: TypeAlias = tuple[int, float, Layout]


@dataclass(frozen=True, slots=True)
class OutgoingRows:
    """Rows that the buffer gave away, oldest first."""

    rows: Sequence[SampleRow]
    began: Callable[[JobIdentity], float]
    """Returns when a job began by the servers' clock."""
    lost_total: int = 0

    def columns(self) -> Iterator[JobColumns]:
        """Yield all rows of each job as columns."""
        jobs: dict[JobIdentity, list[SampleRow]] = {}
        for row in self.rows:
            jobs.setdefault(row.identity, []).append(row)
        return (columns_of(each, self.began(identity)) for identity, each in jobs.items())

    def batches(self) -> Iterator[pb.SampleBatch]:
        """Yield batches for servers of the release before. A single row may be too large."""
        batch = batch_message(self.columns(), self.lost_total)
        if len(self.rows) <= 1 or batch.ByteSize() <= LARGEST_BYTES:
            yield batch
            return
        half = len(self.rows) // 2
        for part in (self.rows[:half], self.rows[half:]):
            yield from replace(self, rows=part).batches()


class DeclaredNames:
    """The layouts that were declared on one stream, and their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[_Key, int] = {}
        self._series = 0

    def messages(self, outgoing: OutgoingRows) -> Iterator[pb.SampleRows]:
        """Yield messages that fit, in their order. All of them must be sent."""
        message, size = pb.SampleRows(lost_total=outgoing.lost_total), 0
        for row in outgoing.rows:
            key = row.identity.job_id, outgoing.began(row.identity), row.layout
            number = self._numbers.get(key)
            cost = _row_bytes(row) + (_layout_bytes(row.layout) if number is None else 0)
            is_full = number is None and not self._has_room(row.layout)
            has_no_room = size + cost > LARGEST_BYTES or len(message.rows) >= MOST_ROWS
            if message.rows and (is_full or has_no_room):
                yield message
                message, size = pb.SampleRows(lost_total=outgoing.lost_total), 0
            if is_full:
                self._numbers.clear()
                self._series, message.anew = 0, True
            if number is None:
                number = self._declare(message, key)
            _add(message, number, row)
            size += cost
        yield message

    def _has_room(self, layout: Layout) -> bool:
        return len(self._numbers) < MOST_LAYOUTS and self._series + len(layout) <= MOST_SERIES

    def _declare(self, message: pb.SampleRows, key: _Key) -> int:
        number = self._numbers[key] = len(self._numbers)
        job_id, started, layout = key
        self._series += len(layout)
        declared = message.layouts.add(number=number, job_id=job_id, started=started)
        for metric, labels, source in layout:
            add_labels(declared.series.add(metric=metric, source=source.value).labels, labels)
        return number


def _add(message: pb.SampleRows, number: int, row: SampleRow) -> None:
    late_ms = little_endian(row.late_ms) if any(row.late_ms) else b""
    values = little_endian(row.values)
    message.rows.add(layout=number, time_ms=row.time_ms, values=values, late_ms=late_ms)


def _row_bytes(row: SampleRow) -> int:
    return _ROW_BYTES + (row.values.itemsize + row.late_ms.itemsize) * len(row.values)


def _layout_bytes(layout: Layout) -> int:
    texts = (
        _SERIES_BYTES
        + len(metric)
        + len(source.value)
        + sum(_LABEL_BYTES + len(name) + len(value.encode()) for name, value in labels)
        for metric, labels, source in layout
    )
    return _LAYOUT_BYTES + sum(texts)
