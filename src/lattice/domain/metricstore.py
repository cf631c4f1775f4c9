"""The port to the metric store: any with Prometheus remote write and PromQL. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Point = tuple[float, float]
"""A time in seconds since 1970, and a value."""


@dataclass(frozen=True, slots=True)
class SeriesPoints:
    """Points of one series, oldest first; `labels` has its name as `__name__`."""

    labels: Mapping[str, str]
    points: tuple[Point, ...]


class BadQuery(Exception):
    """The store rejects the query; the text is the store's."""


class StoreSilent(Exception):
    """The store does not answer, or not in time; the text gives the reason."""


class WriteRefused(Exception):
    """The store refuses these points for good; a retry would not help."""


class MetricStore(Protocol):
    """VictoriaMetrics, or a stock Prometheus with its remote-write receiver on."""

    async def write(self, series: Sequence[SeriesPoints]) -> None:
        """Accepted when this returns. Raises `StoreSilent` (retry) and `WriteRefused`."""

    async def write_encoded(self, request: bytes) -> None:
        """As `write`, for a `WriteRequest` of remote write, in protobuf."""

    async def query(
        self, promql: str, *, at: float, within_s: float = 10.0
    ) -> tuple[SeriesPoints, ...]:
        """An instant vector: one point per series. Raises `StoreSilent` and `BadQuery`."""

    async def query_range(
        self, promql: str, *, start: float, end: float, step_s: float, within_s: float = 10.0
    ) -> tuple[SeriesPoints, ...]:
        """A matrix. Raises `StoreSilent` and `BadQuery`."""

    async def series(
        self, match: str, *, start: float, end: float, within_s: float = 10.0
    ) -> tuple[Mapping[str, str], ...]:
        """The label sets of the series that a selector matches."""
