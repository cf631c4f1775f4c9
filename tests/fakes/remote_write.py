"""A reader of remote write that shares nothing with the encoder."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from lattice.domain.metricstore import SeriesPoints

Read = list[tuple[list[tuple[str, str]], list[tuple[int, float]]]]


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def unsnapped(content: bytes) -> bytes:
    """Snappy's block format, as its description has it; literals only."""
    size, at = read_varint(content, 0)
    found = bytearray()
    while at < len(content):
        tag = content[at]
        assert tag & 3 == 0, "not a literal"
        length, at = tag >> 2, at + 1
        if length >= 60:
            width = length - 59
            length = int.from_bytes(content[at : at + width], "little")
            at += width
        found += content[at : at + length + 1]
        at += length + 1
    assert len(found) == size
    return bytes(found)


def fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(content):
        key, at = read_varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = read_varint(content, at)
            yield number, value
            continue
        size = 8
        if kind == 2:
            size, at = read_varint(content, at)
        assert kind in {1, 2}
        yield number, content[at : at + size]
        at += size


def read(body: bytes) -> Read:
    """What a write as it is posted holds."""
    return read_request(unsnapped(body))


def read_request(request: bytes) -> Read:
    found: Read = []
    for number, series in fields(request):
        assert number == 1
        assert isinstance(series, bytes)
        labels, samples = [], []
        for which, part in fields(series):
            assert isinstance(part, bytes)
            told = dict(fields(part))
            if which == 1:
                labels.append((told[1].decode(), told[2].decode()))  # type: ignore[union-attr]
            else:
                samples.append((told[2], struct.unpack("<d", told[1])[0]))  # type: ignore[arg-type]
        found.append((labels, samples))  # type: ignore[arg-type]
    return found


def points_in(request: bytes) -> list[SeriesPoints]:
    return [
        SeriesPoints(dict(labels), tuple((time_ms / 1000, value) for time_ms, value in samples))
        for labels, samples in read_request(request)
    ]
