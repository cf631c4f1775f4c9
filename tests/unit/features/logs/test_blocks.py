"""Records as binary frames: what is written is read, in any pieces, and nonsense is refused."""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.events import BadEvents, Event
from lattice.domain.logchunk import compress
from lattice.domain.logs import GapCause, LogKind
from lattice.features.logs.block_reader import LARGEST_TEXT_BYTES, BlockReader, best_format
from lattice.features.logs.blocks import BlockWriter, LinesFrame, PackedLines
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
    marks=st.just(()),
)
TIME_MS = 1_800_000_000_000


def packed(text: bytes, at: int = 0, **changes: Any) -> PackedLines:
    """A stored frame that was read in halves."""
    half = max(1, len(text) // 2)
    marks = ((half, TIME_MS), (len(text), TIME_MS + 5)) if len(text) > 1 else ((1, TIME_MS),)
    given: dict[str, Any] = {
        "node": "n1",
        "stream": LogKind.STDOUT,
        "source": "batch",
        "rank": 3,
        "seq": 0,
        "count": text.count(b"\n"),
        "offset": at,
        "late": False,
        "marks": marks,
        "begun": b"",
        "plain_bytes": len(text),
        "stored": compress(text),
    }
    return PackedLines(**given | changes)


def written(*records: LinesFrame | PackedLines) -> bytes:
    writer = BlockWriter(msgspec.json.encode)
    return b"".join(writer.record(each, "") for each in records)


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
    assert [each.name for each in read(struct.pack("!cI", b"?", 3) + b"abc" + writer.end, 5)] == [
        "end"
    ]


@pytest.mark.spec("LOG-6")
@given(cut=st.integers(1, 25), size=st.integers(1, 300))
def test_stored_frames_give_the_lines_that_they_hold_and_continue(cut: int, size: int) -> None:
    text = b"one\ntwo\xff\nthree\r3\n\nfour\nfive\n"
    first, second = text[:cut], text[cut:]
    frames = [
        packed(b"x" + first, 10, begun=b"begun ", count=first.count(b"\n")),
        packed(second, 11 + cut, seq=first.count(b"\n"), begun=None),
    ]
    events = read(written(*frames), size)
    blocks = [each.record for each in events]
    whole = (b"begun x" + text).decode("utf-8", "backslashreplace")
    assert "".join(each.text for each in blocks) == whole
    assert sum(each.count for each in blocks) == text.count(b"\n")
    assert [each.seq for each in blocks] == [
        sum(each.count for each in blocks[:number]) for number in range(len(blocks))
    ]
    assert blocks[0].offset == 4, "where the line begins, which came with the frame"
    assert {each.rank for each in blocks} == {3}


def test_lines_of_one_frame_have_their_own_times() -> None:
    blocks = [each.record for each in read(written(packed(b"a\nb\nc\nd\n")), 1000)]
    assert [(each.text, each.seq, each.offset) for each in blocks] == [
        ("a\nb\n", 0, 0),
        ("c\nd\n", 2, 4),
    ]
    first, second = (each.time for each in blocks)
    assert (second - first).total_seconds() == 0.005


def test_a_block_replaces_the_line_that_a_stored_frame_began() -> None:
    """A server that has to expand the last frame sends the line whole."""
    line = LinesFrame(
        "n1", LogKind.STDOUT, "batch", 3, 1, 1, 2, TIME_MS, False, 0, False, b"begun\n"
    )
    texts = [each.record.text for each in read(written(packed(b"a\nbe"), line), 1000)]
    assert texts == ["a\n", "begun\n"]


@pytest.mark.parametrize(
    "bad",
    [
        packed(b"a\n", begun=None),
        packed(b"a\n", stored=b"nothing"),
        packed(b"a\n", stored=compress(b"abc\n")),
        packed(b"a\n", plain_bytes=LARGEST_TEXT_BYTES + 1),
        packed(b"a\n", stored=compress(bytes(LARGEST_TEXT_BYTES))),
        packed(b"a\n", marks=((1, TIME_MS),)),
        packed(b"a\n", marks=((2, TIME_MS), (1, TIME_MS))),
        packed(b"a\n", marks=((2, -1),)),
        packed(b"a\n", marks=tuple((n, TIME_MS) for n in range(1, 2000))),
    ],
    ids=["alone", "no zstd", "longer", "too large", "bomb", "short", "back", "no time", "many"],
)
def test_a_stored_frame_that_is_not_what_it_claims_is_refused(bad: PackedLines) -> None:
    with pytest.raises(BadEvents):
        read(written(bad), 1000)


def test_stored_frames_must_join() -> None:
    with pytest.raises(BadEvents):
        read(written(packed(b"a\nb"), packed(b"c\n", 4, seq=1, begun=None)), 1000)


def test_times_that_do_not_cover_the_lines_are_refused() -> None:
    frame = LinesFrame(
        "n1", LogKind.STDOUT, "batch", None, 0, 2, 0, TIME_MS, False, 0, False, b"a\nb\n",
        ((2, TIME_MS),),
    )  # fmt: skip
    with pytest.raises(BadEvents):
        read(written(frame), 1000)


def test_a_client_asks_for_what_it_can_expand() -> None:
    best = best_format()
    assert best.parameters == ";zstd=1"
    assert best.simpler is not None
    assert (best.simpler.parameters, best.simpler.simpler) == ("", None)


def test_a_frame_in_many_pieces_is_joined_once() -> None:
    frame = LinesFrame(
        "n1", LogKind.STDOUT, "batch", None, 0, 9, 0, TIME_MS, False, 0, False, b"123456789\n" * 9
    )
    reader = BlockReader(is_decoding=False)
    data = written(frame)
    found = [event for at in range(len(data)) for event in reader.feed(data[at : at + 1])]
    assert [each.record for each in found] == [frame]
    assert list(reader.feed(data[:3])) == []
