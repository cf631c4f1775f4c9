"""Records as binary frames: what is written is read, in any pieces, and nonsense is refused."""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.events import BadEvents, Event
from lattice.domain.logs import GapCause, LogKind
from lattice.features.logs.blocks import BlockReader, BlockWriter, LinesFrame
from lattice.features.logs.model import LogGap

FRAMES = st.builds(
    LinesFrame,
    node=st.sampled_from(["n1", "n2", "ñ"]),
    stream=st.sampled_from(LogKind),
    source=st.sampled_from(["batch", "0", "0.3"]),
    rank=st.none() | st.integers(0, 1 << 30),
    seq=st.integers(0, 1 << 53),
    count=st.integers(0, 1 << 20),
    offset=st.integers(0, 1 << 53),
    time_ms=st.integers(0, 4_000_000_000_000),
    late=st.booleans(),
    cut=st.integers(0, 100),
    unfinished=st.booleans(),
    text=st.binary(max_size=200),
)


def read(data: bytes, size: int) -> list[Event]:
    reader = BlockReader()
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return [event for piece in pieces for event in reader.feed(piece)]


@pytest.mark.spec("LOG-3")
@given(frames=st.lists(FRAMES, max_size=10), size=st.integers(1, 300))
def test_blocks_are_read_as_they_were_written(frames: list[LinesFrame], size: int) -> None:
    writer = BlockWriter(msgspec.json.encode)
    data = b"".join(writer.record(each, "") for each in frames)
    assert [each.record for each in read(data, size)] == [each.record() for each in frames]


def test_other_records_cursors_and_ends_keep_their_order() -> None:
    writer = BlockWriter(msgspec.json.encode)
    gap = LogGap(
        node="n1",
        stream=LogKind.STDOUT,
        source="batch",
        seq=1,
        offset=2,
        time=datetime(2026, 1, 1, tzinfo=UTC),
        cause=GapCause.UNKNOWN,
    )
    data = writer.begin + writer.record(gap, "c1") + writer.alive + writer.end
    names = [(each.name, each.id) for each in read(data, 3)]
    assert names == [("", ""), ("gap", ""), ("cursor", "c1"), ("", ""), ("end", "")]
    assert msgspec.json.decode(read(data, 7)[1].data, type=LogGap) == gap
    assert read(writer.error(b'{"code": "x"}'), 4) == [Event("error", b'{"code": "x"}', "")]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!cI", b"B", 1 << 30),
        struct.pack("!cI", b"B", 3) + b"abc",
        struct.pack("!cI", b"S", 2) + b"{}",
        struct.pack("!cI", b"S", 1) + b"\xff",
        struct.pack("!cI", b"C", 1) + b"\xff",
        struct.pack("!cIIiQIQqBI", b"B", 41, 9, 0, 0, 0, 0, 0, 0, 0),
    ],
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(BadEvents):
        read(data, 1000)


@given(data=st.binary(max_size=300), size=st.integers(1, 50))
def test_any_bytes_are_read_or_refused(data: bytes, size: int) -> None:
    with suppress(BadEvents):
        read(data, size)


def test_a_kind_of_a_later_version_is_ignored() -> None:
    writer = BlockWriter(msgspec.json.encode)
    assert [each.name for each in read(struct.pack("!cI", b"Z", 3) + b"abc" + writer.end, 5)] == [
        "end"
    ]
