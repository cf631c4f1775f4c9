"""Binary frames of logs from a hostile server, and text that a node may have forged.

The first byte is the size of the pieces in which the rest comes.

- Any bytes give events or `BadEvents`; nothing else escapes.
- The same bytes in other pieces give the same events.
- Every record has a time, a stream, and text within its bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lattice.base.events import BadEvents, Event
from lattice.domain.logchunk import compress
from lattice.domain.logs import LogKind
from lattice.features.logs.block_reader import LARGEST_TEXT_BYTES, BlockReader
from lattice.features.logs.blocks import BlockWriter, LinesFrame, PackedLines
from lattice.features.logs.model import LogBlock

_TIME_MS = 1_700_000_000_000
_TEXT = b"one\ntwo\nthr"
TOKENS = (
    b"S\x00\x00\x00\x19", b"B\x00\x00\x00\x29", b"M\x00\x00\x00\x37", b"Z\x00\x00\x00\x40",
    b"J\x00\x00\x00\x05note\n", b"C\x00\x00\x00\x01c", b"A\x00\x00\x00\x00", b"E\x00\x00\x00\x00",
    b"X\x00\x00\x00\x02{}", b'[0, "n1", "stdout", "batch"]', b'[[], "n1", "stdout", 1]',
    b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x28\xb5\x2f\xfd", b"\x00\x02", b"\x00\x00\x00\x04",
)  # fmt: skip


def seeds() -> Iterable[bytes]:
    writer = BlockWriter(lambda _: b"{}")
    stream = ("n1", LogKind.STDOUT, "batch", 0)
    lines = LinesFrame(*stream, 0, 2, 0, _TIME_MS, False, 0, False, b"one\ntwo\n")
    marks = ((4, _TIME_MS), (len(_TEXT), _TIME_MS + 1))
    stored = compress(_TEXT)
    packed = PackedLines(*stream, 2, 2, 8, False, marks, b"", len(_TEXT), stored)
    follows = replace(packed, seq=4, offset=8 + len(_TEXT), begun=None)
    yield b"\x07" + writer.record(lines, "c")
    yield b"\x40" + writer.record(replace(lines, marks=((4, _TIME_MS), (8, _TIME_MS))), "")
    yield b"\x10" + writer.record(packed, "") + writer.record(follows, "c") + writer.end
    bomb = replace(packed, stored=compress(bytes(LARGEST_TEXT_BYTES)))
    yield b"\x20" + writer.record(bomb, "")
    yield b"\x01" + writer.alive + writer.error(b"{}")
    yield b"\x05" + writer.begin + writer.end
    late = replace(lines, late=True, unfinished=True, rank=None, cut=1, node="n2")
    yield b"\x0b" + writer.record(lines, "") + writer.record(late, "")
    yield b"\x0c" + writer.record(replace(packed, begun=b"begun "), "")
    yield b"\x0d" + writer.record(packed, "") + writer.record(replace(lines, seq=4), "")
    yield b"\x0e" + writer.record(replace(packed, marks=((1, _TIME_MS),)), "")
    yield b"\x3f" + b"[" * 3000
    nested = b"[" * 3000
    yield b"\x3f" + b"S" + len(nested).to_bytes(4, "big") + nested


def try_one(data: bytes) -> None:
    size, raw = (data[0] % 64 + 1, data[1:]) if data else (1, b"")
    whole = _events([raw])
    assert whole == _events([raw[at : at + size] for at in range(0, len(raw), size)])
    for each in whole:
        if isinstance(each.record, LogBlock):
            assert len(each.record.text) <= 4 * LARGEST_TEXT_BYTES


def _events(pieces: list[bytes]) -> list[Event]:
    """The events up to the first bytes that are refused."""
    reader, found = BlockReader(), []
    try:
        for piece in pieces:
            for event in reader.feed(piece):
                found.append(event)  # noqa: PERF402 - those before a refusal count
    except BadEvents:
        found.append(Event("refused", b"", ""))
    return found
