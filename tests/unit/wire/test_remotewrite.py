"""The encoding of a write, read back by a reader that shares nothing with it."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.metricstore import SeriesPoints
from lattice.wire.remotewrite import (
    WriteEncoder,
    as_snappy,
    samples_in,
    series_in,
    varint,
)
from tests.fakes.remote_write import points_in, read, read_request, read_varint, unsnapped

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
        request = encoder.encode(series)
        assert read_request(request) == expected
        assert read(as_snappy(request)) == expected


def test_a_label_without_a_value_is_left_out() -> None:
    body = WriteEncoder().encode([SeriesPoints({"__name__": "a", "tenant": ""}, ((1e9, 1.0),))])
    assert read_request(body) == [([("__name__", "a")], [(10**12, 1.0)])]


@pytest.mark.spec("SRC-2")
def test_not_a_number_passes_the_wire_as_such() -> None:
    body = WriteEncoder().encode([SeriesPoints({"__name__": "a"}, ((1e9, math.nan),))])
    assert math.isnan(read_request(body)[0][1][0][1])


@pytest.mark.parametrize("size", [0, 1, 60, 61, 65_535, 65_536, 65_537, 300_000])
def test_blocks_of_any_size_are_whole(size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    assert unsnapped(as_snappy(content)) == content


@given(st.integers(0, 2**64 - 1))
def test_numbers_of_any_size_are_whole(number: int) -> None:
    assert read_varint(varint(number), 0) == (number, len(varint(number)))


@given(many)
def test_a_request_comes_apart_into_its_series(series: list[SeriesPoints]) -> None:
    apart = list(series_in(WriteEncoder().encode(series)))
    assert [points_in(each) for each in apart] == [
        points_in(WriteEncoder().encode([each])) for each in series
    ]
    assert [samples_in(each) for each in apart] == [len(each.points) for each in series]


rows = st.lists(
    st.tuples(
        st.lists(st.floats(), min_size=3, max_size=3),
        # Times of 1970 and of the far future have other lengths than those of today.
        st.lists(st.integers(0, 9_000_000_000_000), min_size=3, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(st.dictionaries(texts, texts, min_size=1), min_size=3, max_size=3), rows)
def test_rows_are_what_their_points_are(
    labels: list[dict[str, str]], rows: list[tuple[list[float], list[int]]]
) -> None:
    encoder = WriteEncoder()
    prepared = encoder.prepare(labels)
    packed = [(struct.pack("<3d", *values), times_ms) for values, times_ms in rows]
    request = encoder.encode(
        SeriesPoints(
            each, tuple((times_ms[place] / 1000, values[place]) for values, times_ms in rows)
        )
        for place, each in enumerate(labels)
    )
    assert prepared.encode(packed) == request
    (values, times_ms) = rows[0]
    one = prepared.only([False, True, False])
    assert one.encode([(struct.pack("<d", values[1]), times_ms[1:2])]) == encoder.encode(
        [SeriesPoints(labels[1], ((times_ms[1] / 1000, values[1]),))]
    )
