"""Stored logs: chunks, their index, cursors and seals. A node or a caller may have forged each.

The first byte says what the rest is; see `_READERS`.

- Any bytes give a value or the documented error; nothing else escapes.
- What is read is written again as the same value.
- A frame gives exactly as many bytes as its index says, and never more.
- Whatever a server admits, it can show: every line and gap has a time and a place.
- Text that comes in other pieces gives the same lines.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from lattice.base.errors import UsageError
from lattice.base.signatures import SigningKey
from lattice.base.zstd import zstd
from lattice.domain.allocation import Allocation, Attempt, State
from lattice.domain.logchunk import (
    FRAME_BYTES,
    BadChunk,
    ChunkIndex,
    Frame,
    compress,
    expand,
    frames_of,
    gap_records,
    index_frame,
    pieces_of,
    read_index,
    verify,
)
from lattice.domain.logs import (
    BadSource,
    Gap,
    GapCause,
    LogKind,
    LogSource,
    Piece,
    Position,
    StreamName,
)
from lattice.features.logs.lines import LineAssembler, Lines
from lattice.features.logs.service import records
from lattice.features.logs.service.cursor import read_cursor, write_cursor
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.seal import METADATA, BrokenSeal, Seals
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.manual_clock import RECORDED, ManualClock

TEXT = b"one\ntwo\nthree"
STORED = compress(TEXT)
TOKENS = (
    b'"frames":[[%d,13,2,[13,1700000000000]]]' % len(STORED),
    b"[13,13,2,[6,1700000000000,7,5],true]",
    b'"gaps":[[3,1,"truncated",null,1700000000000]]',
    b'"gaps":[[3,1,"tampered",5,0]]',
    b'"last":true',
    b'"before":5',
    b'"source":"0.1~2"',
    b'"source":"batch"',
    b'"sha256":"%s"' % hashlib.sha256(STORED).hexdigest().encode(),
    b'"n1/stdout/batch":[5,1]',
    b'{"attempt":1,"places":{}}',
    b'"seal":{"key":"k","digest":"d","signature":"00"}',
    b'"index_sha256":"00"',
    b"LATTICE1",
    b"\x28\xb5\x2f\xfd",
    b"\x5c\x2a\x4d\x18",
    b"253402300800000",
    b"9007199254740991",
    b"18446744073709551616",
    b"9" * 40,
    b"1e999",
    b"-1",
    b"null",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b'{"a":' * 8,
    b"\\ud800",
    b"\xff",
)
_NAME = StreamName("n1", LogKind.STDOUT, LogSource("batch"))
_LARGEST = 2**63
_T = TypeVar("_T")


def seeds() -> Iterable[bytes]:
    index = ChunkIndex(
        node="n1",
        job_id=7,
        started=1.5,
        kind=LogKind.STDOUT,
        source="batch",
        offset=0,
        line=0,
        frames=(Frame(len(STORED), len(TEXT), 2, (6, 1_700_000_000_000, 7, 5)),),
        gap_records=gap_records([Gap(Position(13, 2), GapCause.QUOTA, 5, 1_700_000_000_001)]),
        sha256=hashlib.sha256(STORED).hexdigest(),
    )
    yield b"C" + STORED + index_frame(index)
    plain = _index_text(index_frame(index))
    yield b"I" + plain
    deep = b"[" * 1500 + b"]" * 1500
    yield b"I" + plain.replace(b"5],false]", b"5],false,%s]" % deep)
    yield b"I" + plain.replace(b'{"format"', b'{"x":%s,"format"' % deep)
    yield b"I" + plain.replace(b"1700000000001", b"9007199254740991")
    yield b"Z\x00\x00\x0d" + STORED
    # A bomb: 64 MB in 2 KB.
    yield b"Z\x03\xff\xff" + zstd.compress(bytes(16 * 1024 * 1024))[:4000]
    cursor = write_cursor(3, {str(_NAME): Position(5, 1)})
    yield b"U" + cursor.encode()
    yield b'J{"attempt":3,"places":{"n1/stdout/batch":[5,1]}}'
    yield b'J{"attempt":3,"x":' + deep + b',"places":{}}'
    yield b'J{"attempt":3,"places":{"n1/stdout/batch":[99999999999999999999999,1]}}'
    yield (
        b'S{"streams":[{"node":"n1","stream":"stdout","source":"batch","chunks":[{"key":"k",'
        b'"offset":0,"bytes":5,"line":0,"lines":1,"index_sha256":"aa"}]}],'
        b'"seal":{"key":"k","digest":"d","signature":"00"}}'
    )
    yield b'S{"x":' + deep + b',"streams":[]}'
    yield b"s0+1.5~3"
    yield b"L\x05one\ntwo\n" + b"x" * 20 + b"\r\nthree"


def try_one(data: bytes) -> None:
    check = _READERS.get(data[:1])
    if check is not None:
        check(data[1:])


def _chunk(data: bytes) -> None:
    with suppress(BadChunk):
        _same_again(read_index(data, len(data)))
    try:
        admitted = verify(data)
    except BadChunk:
        return
    _can_be_shown(data, admitted)


def _index(text: bytes) -> None:
    """An index with this text behind a sound frame, or behind none."""
    packed = zstd.compress(text, 1)
    body = packed + struct.pack("<I8s", len(packed), b"LATTICE1")
    end = struct.pack("<II", 0x184D2A5C, len(body)) + body
    for frames in (STORED, STORED * 2, b""):
        _chunk(frames + end)


def _index_text(end: bytes) -> bytes:
    return zstd.decompress(end[8:-12])


def _same_again(index: ChunkIndex) -> None:
    again = index_frame(index)
    try:
        read = read_index(again, index.stored_bytes + len(again))
    except BadChunk:
        raise AssertionError("an index that was read can't be written") from None
    assert read == index


def _can_be_shown(chunk: bytes, index: ChunkIndex) -> None:
    whole, end = b"", index.begin
    name = StreamName(index.node, index.kind, LogSource.parse(index.source))
    found: list[Piece] = []
    for placed, text in frames_of(chunk, index):
        assert placed.begin == end
        pieces = list(pieces_of(placed, text))
        assert b"".join(each.text for each in pieces) == text
        records.moment(placed.times_ms[0])
        records.moment(placed.times_ms[1])
        found += pieces
        whole += text
        end = placed.end
    assert end == index.end
    assert end.offset == index.begin.offset + len(whole)
    assert end.offset < _LARGEST
    assert end.line < _LARGEST
    for each in index.gaps:
        records.gap(name, each)
    for lines in _lines(index.begin, found):
        records.block(name, lines)


def _lines(begin: Position, pieces: Iterable[Piece]) -> list[Lines]:
    assembler = LineAssembler(begin)
    found = [assembler.take(each) for each in pieces]
    last = assembler.unfinished(assembler.last_ms)
    return [each for each in (*found, last) if each is not None]


def _frame(data: bytes) -> None:
    admitted = int.from_bytes(data[:3], "big") % FRAME_BYTES + 1
    stored = data[3:]
    try:
        text = expand(stored, Frame(len(stored), admitted, 0, (admitted, 0)))
    except BadChunk:
        return
    assert len(text) == admitted


def _cursor(data: bytes) -> None:
    _cursor_text(data.decode("latin-1"))


def _cursor_json(data: bytes) -> None:
    _cursor_text(base64.urlsafe_b64encode(zlib.compress(data)).decode().rstrip("="))


def _cursor_text(text: str) -> None:
    try:
        attempt, places = read_cursor(text)
    except UsageError:
        return
    texts = {str(name): at for name, at in places.items()}
    assert read_cursor(write_cursor(attempt, texts)) == (attempt, places)
    assert 0 <= attempt < _LARGEST
    for at in places.values():
        assert 0 <= at.offset < _LARGEST
        assert 0 <= at.line < _LARGEST


@cache
def _key() -> SigningKey:
    return SigningKey.generate()


@cache
def _attempt() -> AttemptName:
    allocation = Allocation(
        cluster="lab", id="7", job_id=7, name="", user="u", account="a", tenant="t", partition="p",
        qos="", vcluster=None, state=State.COMPLETED, submitted=RECORDED,
        first_submitted=RECORDED, nodes="n1", node_count=1,
    )  # fmt: skip
    return AttemptName(allocation, Attempt(number=1, state=State.COMPLETED, submitted=RECORDED))


def _seal(data: bytes) -> None:
    """No such text holds: nobody signed it."""
    objects, name = InMemoryObjectStore(ManualClock()), _attempt()
    _done(objects.put(f"{name.prefix}/{METADATA}", data))
    _done(objects.put(f"{name.prefix}/late/k", data))
    seals = Seals(objects, None, [_key().public])
    with suppress(BrokenSeal):
        assert _done(seals.of(name)) is None, "a seal that nobody signed holds"
    assert not _done(seals.is_late(name, "k", "d")), "a note that nobody signed holds"


def _done(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """What it comes to; it has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        found: _T = end.value
        return found
    raise AssertionError("it waits")


def _source(data: bytes) -> None:
    try:
        found = LogSource.parse(data.decode("utf-8", "replace"))
    except BadSource:
        return
    assert LogSource.parse(str(found)) == found


def _cut_anywhere(data: bytes) -> None:
    """The same text in one piece and in pieces of one size."""
    size, text = data[0] % 16 + 1 if data else 1, data[1:]
    at, pieces = Position(), []
    for begin in range(0, len(text), size):
        part = text[begin : begin + size]
        pieces.append(Piece(at, 5, late=False, text=part))
        at = at.past(part)
    whole = _lines(Position(), [Piece(Position(), 5, late=False, text=text)] if text else [])
    parts = _lines(Position(), pieces)
    assert b"".join(each.text for each in whole) == b"".join(each.text for each in parts)
    assert sum(each.count for each in whole) == sum(each.count for each in parts)
    assert [each.end for each in whole][-1:] == [each.end for each in parts][-1:]


_READERS: dict[bytes, Callable[[bytes], None]] = {
    b"C": _chunk,
    b"I": _index,
    b"Z": _frame,
    b"U": _cursor,
    b"J": _cursor_json,
    b"S": _seal,
    b"s": _source,
    b"L": _cut_anywhere,
}
