"""Prometheus remote write 1.0: a `WriteRequest` in protobuf, in Snappy's block format. Pure.

The encoders are hand-written, because every sample of the cluster passes here. Nearly all bytes of
a large write are labels. So each pair of labels is encoded once and cached, and `PreparedSeries`
has the labels of series that come again and again. Requests are joined by joining their bytes.
Snappy without compression is valid Snappy: a length, then literals.

    message WriteRequest { repeated TimeSeries timeseries = 1; }
    message TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2; }
    message Label        { string name = 1; string value = 2; }
    message Sample       { double value = 1; int64 timestamp = 2; }
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TypeAlias

from lattice.domain.metricstore import Point, SeriesPoints

HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}

MOST_CACHED = 200_000
_MOST_MOMENTS = 50_000
_LITERAL_BYTES = 65_536
_LITERAL = 61 << 2
"""The tag of a literal with its length, less one, in the two bytes that follow."""
_SERIES, _LABELS, _SAMPLE = b"\x0a", b"\x0a", b"\x12"
_VALUE = struct.Struct("<sd").pack
_VALUE_TAG = b"\x09"
_USUAL_BYTES = 7
"""The length of a timestamp with its tag, from 1971 to 2109."""

Row: TypeAlias = tuple[bytes, Sequence[int]]
"""A value of each series as float64, little-endian, and the time of each in milliseconds."""


class WriteEncoder:
    """Encodes requests, and caches repeated parts."""

    def __init__(self, most_cached: int = MOST_CACHED) -> None:
        """`most_cached`: the limit of cached label pairs."""
        self._most_cached = most_cached
        self._pairs = _Pairs()
        self._moments = _Moments()

    def encode(self, series: Iterable[SeriesPoints]) -> bytes:
        """A `WriteRequest`. Labels with an empty value are left out."""
        self._bound()
        return b"".join(map(self._series, series))

    def prepare(self, labels: Iterable[Mapping[str, str]]) -> PreparedSeries:
        """Series with these labels, for rows."""
        self._bound()
        return PreparedSeries(map(self._labels, labels), self._moments)

    def _bound(self) -> None:
        if len(self._pairs) > self._most_cached:
            self._pairs.clear()
        self._moments.bound()

    def _labels(self, labels: Mapping[str, str]) -> bytes:
        # The protocol requires labels sorted by name.
        return b"".join(map(self._pairs.__getitem__, sorted(labels.items())))

    def _series(self, each: SeriesPoints) -> bytes:
        return _field(_SERIES, self._labels(each.labels) + b"".join(map(self._sample, each.points)))

    def _sample(self, point: Point) -> bytes:
        return _sample(_VALUE(_VALUE_TAG, point[1]), self._moments[round(point[0] * 1000)])


class PreparedSeries:
    """Series that are measured together, with their labels encoded once."""

    def __init__(self, labels: Iterable[bytes], moments: _Moments) -> None:
        """`labels`: the encoded labels of each series."""
        self._moments = moments
        self._single = tuple(
            _SERIES + varint(len(each) + _USUAL_SAMPLE_BYTES) + each + _USUAL_SAMPLE
            for each in labels
        )
        """All of a series with one sample that comes before its value."""
        self._values = struct.Struct("8s" * len(self._single)).unpack

    def encode(self, rows: Sequence[Row]) -> bytes:
        """A `WriteRequest` with each series once. The rows are oldest first."""
        if not rows:
            return b""
        self._moments.bound()
        if len(rows) == 1:
            values, times_ms = rows[0]
            moments = [self._moments[each] for each in times_ms]
            if set(map(len, moments)) == {_USUAL_BYTES}:
                # A fast path: this runs for every node at every sampling time.
                parts = [b""] * (3 * len(moments))
                parts[0::3], parts[1::3], parts[2::3] = self._single, self._values(values), moments
                return b"".join(parts)
        columns = zip(*map(self._samples, rows), strict=True)
        return b"".join(
            _field(_SERIES, labels + b"".join(samples))
            for labels, samples in zip(self._labels(), columns, strict=True)
        )

    def only(self, wanted: Sequence[bool]) -> PreparedSeries:
        """Those of the series that are wanted."""
        return PreparedSeries(compress(self._labels(), wanted), self._moments)

    def _labels(self) -> Iterator[bytes]:
        for each in self._single:
            _, begin = _read_varint(each, len(_SERIES))
            yield each[begin : -len(_USUAL_SAMPLE)]

    def _samples(self, row: Row) -> Iterator[bytes]:
        for value, time_ms in zip(self._values(row[0]), row[1], strict=True):
            yield _sample(_VALUE_TAG + value, self._moments[time_ms])


class _Pairs(dict[tuple[str, str], bytes]):
    """`labels` fields by name and value."""

    def __missing__(self, pair: tuple[str, str]) -> bytes:
        name, value = pair[0].encode(), pair[1].encode()
        if not value:
            return b""
        made = self[pair] = _field(_LABELS, _field(b"\x0a", name) + _field(b"\x12", value))
        return made


class _Moments(dict[int, bytes]):
    """`timestamp` fields by their time: many series have the same."""

    def __missing__(self, time_ms: int) -> bytes:
        made = self[time_ms] = b"\x10" + varint(time_ms & _UNSIGNED)
        return made

    def bound(self) -> None:
        if len(self) > _MOST_MOMENTS:
            self.clear()


def series_in(request: bytes) -> Iterator[bytes]:
    """Yield each series of a request, as a request of its own."""
    at = 0
    while at < len(request):
        size, begin = _read_varint(request, at + 1)
        yield request[at : begin + size]
        at = begin + size


def samples_in(series: bytes) -> int:
    """Count the samples of one series, as `series_in` has it."""
    count = 0
    _, at = _read_varint(series, 1)
    while at < len(series):
        size, begin = _read_varint(series, at + 1)
        count += series[at : at + 1] == _SAMPLE
        at = begin + size
    return count


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + varint(len(body)) + body


def _sample(value: bytes, moment: bytes) -> bytes:
    return _SAMPLE + _SMALL[len(value) + len(moment)] + value + moment


def varint(number: int) -> bytes:
    """Seven bits a byte, the least significant first."""
    if number < len(_SMALL):
        return _SMALL[number]
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_UNSIGNED = (1 << 64) - 1
_SMALL: list[bytes] = []
_SMALL.extend([varint(number) for number in range(2048)])
_USUAL_SAMPLE = _SAMPLE + varint(9 + _USUAL_BYTES) + _VALUE_TAG
"""What comes before the value of a sample with a usual timestamp."""
_USUAL_SAMPLE_BYTES = len(_USUAL_SAMPLE) + 8 + _USUAL_BYTES


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def as_snappy(content: bytes) -> bytes:
    """The same bytes as a Snappy block of literals."""
    return b"".join((varint(len(content)), *_literals(content)))


def _literals(content: bytes) -> Iterable[bytes]:
    for at in range(0, len(content), _LITERAL_BYTES):
        part = content[at : at + _LITERAL_BYTES]
        yield struct.pack("<BH", _LITERAL, len(part) - 1)
        yield part
