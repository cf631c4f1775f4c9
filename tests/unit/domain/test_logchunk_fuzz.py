"""Chunks of a node that lies: whatever the bytes, `BadChunk` or a chunk, and never much memory."""

from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.zstd import zstd
from lattice.domain.logchunk import (
    FRAME_BYTES,
    BadChunk,
    ChunkIndex,
    Frame,
    compress,
    expand,
    frames_of,
    index_frame,
    pieces_of,
    read_index,
    verify,
)
from lattice.domain.logs import LogKind
from tests.nesting import DEEP, DEPTH

MARK = b"LATTICE1"
MUCH_BYTES = 48 * 1024 * 1024
"""An index may unpack to 8 MiB, and is read from there."""
NUMBERS = st.integers(-2, 300) | st.sampled_from([2**31, 2**53 - 1, 2**53, 2**63, 2**64, -(2**63)])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
EMPTY = hashlib.sha256(b"").hexdigest()
FIELDS = {
    "format": 1,
    "node": "n1",
    "job_id": 7,
    "started": 1.5,
    "kind": "stdout",
    "source": "batch",
    "offset": 0,
    "line": 0,
    "frames": [],
    "gaps": [],
    "last": False,
    "sha256": EMPTY,
}


def with_index(frames: bytes, text: bytes) -> bytes:
    packed = zstd.compress(text)
    body = packed + struct.pack("<I8s", len(packed), MARK)
    return frames + struct.pack("<II", 0x184D2A5C, len(body)) + body


def sound(*texts: bytes) -> bytes:
    stored = [compress(each) for each in texts]
    index = ChunkIndex(
        node="n1",
        job_id=7,
        started=1.5,
        kind=LogKind.STDOUT,
        source="batch",
        offset=0,
        line=0,
        frames=tuple(
            Frame(len(kept), len(text), text.count(b"\n"), (len(text), 1000))
            for kept, text in zip(stored, texts, strict=True)
        ),
        sha256=hashlib.sha256(b"".join(stored)).hexdigest(),
    )
    return b"".join(stored) + index_frame(index)


def gone_through(chunk: bytes) -> None:
    """All that is done to a chunk that comes in, and to one that is read for somebody."""
    verify(chunk)
    index = read_index(chunk[-4096:], len(chunk))
    for placed, text in frames_of(chunk, index):
        for _ in pieces_of(placed, text):
            pass
    assert index.end >= index.begin
    assert len(index.gaps) == len(index.gap_records)


def bounded(chunk: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadChunk):
            gone_through(chunk)
        assert tracemalloc.get_traced_memory()[1] < MUCH_BYTES
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=400), st.booleans())
def test_noise(noise: bytes, signed: bool) -> None:
    whole = noise + struct.pack("<I8s", max(len(noise) - 8, 0), MARK) if signed else noise
    with pytest.raises(BadChunk):
        gone_through(whole)


@pytest.mark.spec("LOG-1")
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=4), st.data())
def test_any_bytes_of_a_chunk_exchanged(texts: list[bytes], data: st.DataObject) -> None:
    chunk = bytearray(sound(*texts))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(chunk)))
        end = begin + data.draw(st.integers(0, 12))
        chunk[begin:end] = data.draw(st.binary(max_size=12))
    try:
        gone_through(bytes(chunk))
    except BadChunk:
        return
    # What is let through has the bytes that the index signs for.
    index = verify(bytes(chunk))
    assert hashlib.sha256(chunk[: index.stored_bytes]).hexdigest() == index.sha256


@given(st.sampled_from(sorted(FIELDS)), JSON)
def test_any_field_of_the_index_forged(name: str, value: Any) -> None:
    text = json.dumps({**FIELDS, name: value}).encode()
    chunk = with_index(b"", text)
    try:
        gone_through(chunk)
    except BadChunk:
        return
    assert json.loads(msgspec.json.encode(verify(chunk)))[name] == value


@given(
    st.lists(
        st.tuples(NUMBERS, NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=6), st.booleans()),
        max_size=4,
    )
)
def test_any_frames_claimed(claimed: list[tuple[Any, ...]]) -> None:
    kept = compress(b"one\n")
    text = json.dumps({**FIELDS, "frames": claimed}).encode()
    try:
        gone_through(with_index(kept, text))
    except BadChunk:
        return
    assert [each[:3] for each in claimed] == [(len(kept), 4, 1)]


@pytest.mark.parametrize(
    "text",
    [
        b" " * (64 * 1024 * 1024),
        b'{"frames":[' + b",".join([b"[1,1,0,[1,1]]"] * 590_000) + b"]}",
        b'{"gaps":[' + b",".join([b'[0,0,"quota",0,0]'] * 450_000) + b"]}",
        b'{"frames":[[1,1,0,[' + b",".join([b"1"] * 4_000_000) + b"]]]}",
        b"[" * 4_000_000,
        b'{"node":"' + b"x" * 8_000_000 + b'"}',
    ],
    ids=["zeros", "frames", "gaps", "marks", "depth", "name"],
)
def test_an_index_that_unpacks_to_very_much(text: bytes) -> None:
    """Attack 24: a kilobyte that would become hundreds of megabytes."""
    bounded(with_index(b"", text))


def test_a_frame_that_unpacks_to_very_much() -> None:
    bomb = zstd.compress(b"\0" * (64 * 1024 * 1024))
    for claimed in (1, FRAME_BYTES):
        tracemalloc.start()
        try:
            with pytest.raises(BadChunk):
                expand(bomb, Frame(len(bomb), claimed, 0, (claimed, 1)))
            assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
        finally:
            tracemalloc.stop()
    text = json.dumps({**FIELDS, "frames": [[len(bomb), FRAME_BYTES, 0, [FRAME_BYTES, 1]]]})
    bounded(with_index(bomb, text.encode()))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({**FIELDS, "frames": [[9, 1, 0, [1, 1], False, "deep"]]}).encode(),
        json.dumps({**FIELDS, "gaps": [[0, 0, "quota", 1, 1, "deep"]]}).encode(),
        json.dumps({"x": "deep", **FIELDS}).encode(),
    ],
    ids=["frame", "gap", "index"],
)
def test_an_index_that_nests_too_deeply_is_none(text: bytes) -> None:
    bounded(with_index(b"", text.replace(b'"deep"', DEEP)))
    bounded(with_index(b"", text.replace(b'"deep"', b'{"a":' * DEPTH + b"1" + b"}" * DEPTH)))


@pytest.mark.spec("LOG-1")
@pytest.mark.parametrize("time_ms", [-1, 253_402_300_800_000, 2**53 - 1, 2**63, 10**40])
@pytest.mark.parametrize("place", ["first", "later", "gap"])
def test_a_time_that_no_calendar_has_is_refused(time_ms: int, place: str) -> None:
    stored = compress(b"ab")
    marks = {"first": [2, time_ms], "later": [1, 5, 1, time_ms - 5], "gap": [2, 5]}[place]
    gaps = [[0, 0, "quota", None, time_ms]] if place == "gap" else []
    fields = {
        **FIELDS,
        "frames": [[len(stored), 2, 0, marks]],
        "gaps": gaps,
        "sha256": hashlib.sha256(stored).hexdigest(),
    }
    bounded(with_index(stored, json.dumps(fields).encode()))
