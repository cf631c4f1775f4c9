"""The files of a chunk under way, as a power cut may have left them on the node.

The input is the index, the first tail, the frames and the second tail, each after its length in two
bytes.

- No content of the files raises: what can't be believed is left out.
- What was recovered is all there: its text can be read from its beginning to its end.
- Recovering a second time finds the same, and more can be added behind it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from lattice.domain.logchunk import compress
from lattice.domain.logs import LogKind, Position
from lattice.features.logs.node.openchunk import OpenChunk
from lattice.features.logs.node.stream_seal import StreamSeal

TEXT = b"one\ntwo\n"
STORED = compress(TEXT)
TOKENS = (
    b'{"type":"frame","offset":0,"frame":[%d,8,2,[8,1000]]}\n' % len(STORED),
    b'{"type":"frame","offset":8,"frame":[%d,8,2,[4,1000,4,5],true]}\n' % len(STORED),
    b'{"type":"gap","offset":8,"line":2,"cause":"quota","lost_bytes":null,"time_ms":5}\n',
    b"[8,1000]",
    b"[]",
    b"-1",
    b"9" * 30,
    b"\xff",
    b"\x00" * 8,
    b"[[[[[[[[[[[[[[[[",
    STORED,
)
PLAIN = StreamSeal(None, "n1", LogKind.STDOUT, "batch")
_NAMES = ("index", "tail", "frames", "tail2")
_MOST_STEPS = 10_000


def seeds() -> Iterable[bytes]:
    entry = b'{"type":"frame","offset":0,"frame":[%d,8,2,%s,false]}\n'
    gap = b'{"type":"gap","offset":8,"line":2,"cause":"quota","lost_bytes":null,"time_ms":5}\n'
    tail = struct.pack("<QQIIB", 8, 1000, 3, zlib.crc32(b"abc"), 0) + b"abc"
    yield _joined(entry % (len(STORED), b"[8,1000]") + gap, tail, STORED)
    yield _joined(entry % (len(STORED), b"[]"), tail, STORED)
    yield _joined(entry % (len(STORED), b"[5]"), b"", STORED)
    deep = b"[8,1000],false," + b"[" * 1500 + b"]" * 1500
    yield _joined(entry.replace(b",false", b"") % (len(STORED), deep), b"", STORED)
    yield _joined(gap.replace(b"quota", b"\xff\xfe"), tail, b"")
    yield _joined(b"", tail.replace(b"\x08", b"\x00", 1) * 2, b"")
    yield _joined(entry % (len(STORED), b"[4,1000,4,5]"), tail, STORED + STORED[:5])
    yield _joined(entry % (len(STORED), b"[8,1000]"), tail[:-1], STORED)
    yield _joined(entry % (len(STORED), b"[8,1000]") + gap[:20], tail, STORED)
    yield _joined(entry % (len(STORED), b"[8,1000]"), b"", STORED[:-1])
    first = struct.pack("<QQIIB", 0, 1000, 8, zlib.crc32(TEXT), 0) + TEXT
    yield _joined(b"", first, b"", tail)
    yield _joined(b"", tail, b"", first)
    yield _joined(entry % (len(STORED), b"[8,1000]"), first, STORED, tail)
    empty = struct.pack("<QQIIB", 8, 1000, 0, 0, 0)
    yield _joined(entry % (len(STORED), b"[8,1000]"), empty + tail, STORED, first)


def _joined(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">H", len(each)) + each for each in parts)


def try_one(data: bytes) -> None:
    with TemporaryDirectory(dir=_folder()) as name:
        folder = Path(name)
        for each in _NAMES:
            size = int.from_bytes(data[:2], "big")
            (folder / f"open.{each}").write_bytes(data[2 : 2 + size])
            data = data[2 + size :]
        with closing(OpenChunk(folder, Position(), PLAIN)) as chunk:
            text = _read(chunk)
            found = (chunk.end, chunk.frames[:], chunk.gaps[:], chunk.sha256, chunk.began_ms)
        with closing(OpenChunk(folder, Position(), PLAIN)) as again:
            assert _read(again) == text
            assert found == (
                again.end, again.frames, again.gaps, again.sha256, again.began_ms
            ), "it is found otherwise the second time"  # fmt: skip
            again.add(b"more\n", 2000)
            again.make_frame()
            assert _read(again) == text + b"more\n"


def _folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _read(chunk: OpenChunk) -> bytes:
    """All of it, piece by piece."""
    text, at = b"", chunk.begin.offset
    for _ in range(_MOST_STEPS):
        if at >= chunk.end.offset:
            break
        pieces = chunk.pieces(at)
        assert pieces, "a place of the chunk has no text"
        for each in pieces:
            assert each.at.offset == at
            text += each.text
            at += len(each.text)
    assert at == chunk.end.offset
    assert text.count(b"\n") == chunk.end.line - chunk.begin.line
    return text
