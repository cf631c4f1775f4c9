"""Prometheus remote write 1.0: a `WriteRequest` in protobuf, in Snappy's block format. Pure.

Both encoders are hand-written, because every sample of the cluster passes here. Nearly all bytes of
a large write are label pairs that occur in thousands of series. So each pair is encoded once and
cached. Snappy without compression is valid Snappy: a length, then literals.

    message WriteRequest { repeated TimeSeries timeseries = 1; }
    message TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2; }
    message Label        { string name = 1; string value = 2; }
    message Sample       { double value = 1; int64 timestamp = 2; }
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from lattice.domain.metricstore import Point, SeriesPoints

HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}

MOST_CACHED = 200_000
_LITERAL_BYTES = 65_536
_LITERAL = 61 << 2
"""The tag of a literal with its length, less one, in the two bytes that follow."""
_SAMPLE = struct.Struct("<sd").pack


class WriteEncoder:
    """Encodes writes, and caches repeated parts."""

    def __init__(self, most_cached: int = MOST_CACHED) -> None:
        """`most_cached`: the limit of cached label pairs, and of cached timestamps."""
        self._most_cached = most_cached
        self._pairs = _Pairs()
        self._moments = _Moments()

    def encode(self, series: Sequence[SeriesPoints]) -> bytes:
        """The body of one write. Labels with an empty value are left out."""
        for cache in (self._pairs, self._moments):
            if len(cache) > self._most_cached:
                cache.clear()
        return as_snappy(b"".join(map(self._series, series)))

    def _series(self, each: SeriesPoints) -> bytes:
        # The protocol requires labels sorted by name.
        labels = b"".join(map(self._pairs.__getitem__, sorted(each.labels.items())))
        points = each.points
        if len(points) == 1:
            body = labels + self._sample(points[0])
        else:
            body = labels + b"".join(map(self._sample, points))
        return b"\x0a" + varint(len(body)) + body

    def _sample(self, point: Point) -> bytes:
        moment = self._moments[point[0]]
        return b"\x12" + _SMALL[9 + len(moment)] + _SAMPLE(b"\x09", point[1]) + moment


class _Pairs(dict[tuple[str, str], bytes]):
    """`labels` fields by name and value."""

    def __missing__(self, pair: tuple[str, str]) -> bytes:
        name, value = pair[0].encode(), pair[1].encode()
        if not value:
            return b""
        body = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(value)) + value
        made = self[pair] = b"\x0a" + varint(len(body)) + body
        return made


class _Moments(dict[float, bytes]):
    """`timestamp` fields by their time: many nodes measure at the same times."""

    def __missing__(self, moment: float) -> bytes:
        made = self[moment] = b"\x10" + varint(round(moment * 1000) & _UNSIGNED)
        return made


_UNSIGNED = (1 << 64) - 1


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


_SMALL: list[bytes] = []
_SMALL.extend([varint(number) for number in range(2048)])


def as_snappy(content: bytes) -> bytes:
    """The same bytes as a Snappy block of literals."""
    return b"".join((varint(len(content)), *_literals(content)))


def _literals(content: bytes) -> Iterable[bytes]:
    for at in range(0, len(content), _LITERAL_BYTES):
        part = content[at : at + _LITERAL_BYTES]
        yield struct.pack("<BH", _LITERAL, len(part) - 1)
        yield part
