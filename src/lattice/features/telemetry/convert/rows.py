"""Layouts and rows: the series of a job are named once, then come as packed numbers.

A node numbers its layouts on one stream. `MOST_LAYOUTS` and `MOST_SERIES` bound what a server has
to remember of a node; beyond them the node declares its layouts anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import TypeAlias

from lattice.domain.metric import CATALOGUE, Labels, Provenance
from lattice.features.telemetry.convert.batches import (
    BadSamples,
    is_moment,
    known_series,
    labels_of,
)
from lattice.wire.v1 import telemetry_pb2 as pb

MOST_LAYOUTS = 1024
MOST_SERIES = 16_384
"""Of all layouts of a node."""
MOST_ROWS = 4096
"""Of one message: what a server does at once is bounded."""
FROM_NODES = frozenset(Provenance) - {Provenance.SLURM_ACCOUNTING, Provenance.UNAVAILABLE}
_VALUE_BYTES = 8
_NEVER = -1.0
"""A bound that no value meets."""

UnpackedRow: TypeAlias = tuple[bytes, tuple[float, ...], list[int]]
"""The values as they came, as numbers, and the time of each in milliseconds."""


@dataclass(frozen=True, slots=True)
class DeclaredSeries:
    """One series of a layout, or why it is none."""

    metric: str
    labels: Labels
    source: Provenance
    most: float
    """The largest possible value; negative if there is a fault."""
    fault: str = ""


class DeclaredLayout:
    """The series of one run of a job, in the order of its rows."""

    def __init__(self, message: pb.SeriesLayout) -> None:
        """Raises `BadSamples`."""
        if not message.job_id or not is_moment(message.started):
            raise BadSamples("no job that could have begun")
        self.job_id = message.job_id
        self.started = message.started
        self.series = _declared(message.series)
        named = [(each.metric, each.labels, each.source) for each in self.series if not each.fault]
        if len(set(named)) != len(named):
            raise BadSamples("a series that is there twice")
        self.most = tuple(each.most for each in self.series)
        self._values = Struct(f"<{len(self.series)}d")
        self._late = Struct(f"<{len(self.series)}H")

    def unpack(self, row: pb.SampleRow) -> UnpackedRow:
        """Raises `BadSamples`."""
        values, late, time_ms = row.values, row.late_ms, row.time_ms
        if len(values) != self._values.size or (late and len(late) != self._late.size):
            raise BadSamples("not as many samples as series")
        times_ms = (
            [time_ms + each for each in self._late.unpack(late)]
            if late
            else [time_ms] * len(self.series)
        )
        return values, self._values.unpack(values), times_ms


def sample_count(row: pb.SampleRow) -> int:
    """How many samples a row claims to have."""
    return len(row.values) // _VALUE_BYTES


def _declared(names: Iterable[pb.SeriesName]) -> tuple[DeclaredSeries, ...]:
    """A server has these of every node, so what they share is there once."""
    shared: dict[Labels, Labels] = {}
    return tuple(_series_of(each, shared) for each in names)


def _series_of(message: pb.SeriesName, shared: dict[Labels, Labels]) -> DeclaredSeries:
    labels = labels_of(message.labels)
    try:
        source, most = known_series(message.metric, message.source, labels)
    except BadSamples as error:
        return DeclaredSeries("", (), Provenance.UNAVAILABLE, _NEVER, str(error))
    metric, labels = CATALOGUE[message.metric].name, shared.setdefault(labels, labels)
    if source not in FROM_NODES:
        fault = f"no node can have it from {source.value}"
        return DeclaredSeries(metric, labels, source, _NEVER, fault)
    return DeclaredSeries(metric, labels, source, most)
