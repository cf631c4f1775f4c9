"""The encoding of a write, read back by a reader that shares nothing with it."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.metricstore.remotewrite import WriteEncoder, as_snappy, varint
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
    found: Read = []
    for number, series in fields(unsnapped(body)):
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


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)
points = st.tuples(
    st.integers(1_000_000_000_000, 9_000_000_000_000).map(lambda ms: ms / 1000),
    st.floats(allow_nan=False),
)
many = st.lists(
    st.builds(
        SeriesPoints,
        st.dictionaries(texts, texts, min_size=1, max_size=12),
        st.lists(points, min_size=1, max_size=5).map(tuple),
    ),
    max_size=20,
)


@given(many)
def test_whatever_is_written_is_read_back(series: list[SeriesPoints]) -> None:
    encoder = WriteEncoder()
    expected = [
        (
            sorted(each.labels.items()),
            [(round(moment * 1000), value) for moment, value in each.points],
        )
        for each in series
    ]
    for _ in range(2):
        # The second time out of what was kept.
        assert read(encoder.encode(series)) == expected


def test_a_label_without_a_value_is_left_out() -> None:
    body = WriteEncoder().encode([SeriesPoints({"__name__": "a", "tenant": ""}, ((1e9, 1.0),))])
    assert read(body) == [([("__name__", "a")], [(10**12, 1.0)])]


@pytest.mark.spec("SRC-2")
def test_not_a_number_passes_the_wire_as_such() -> None:
    body = WriteEncoder().encode([SeriesPoints({"__name__": "a"}, ((1e9, math.nan),))])
    assert math.isnan(read(body)[0][1][0][1])


@pytest.mark.parametrize("size", [0, 1, 60, 61, 65_535, 65_536, 65_537, 300_000])
def test_blocks_of_any_size_are_whole(size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    assert unsnapped(as_snappy(content)) == content


@given(st.integers(0, 2**64 - 1))
def test_numbers_of_any_size_are_whole(number: int) -> None:
    assert read_varint(varint(number), 0) == (number, len(varint(number)))
