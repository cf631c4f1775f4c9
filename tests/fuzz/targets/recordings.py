"""Recorded terminals: chunks, and the lines of the audit log that name them. Each may be forged.

The first byte says what the rest is; see `_READERS`.

- Any bytes give a value or the documented error; nothing else escapes.
- Text that is read is written again as the same text.
- Without a key a recording is whole only if it is, byte for byte, the one that the log names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice

from lattice.base.zstd import zstd
from lattice.domain.audit import AuditAct, AuditEvent, encode, entry_of
from lattice.domain.objects import BadKeyPart
from lattice.domain.recording import (
    BadRecording,
    ChunkHead,
    RecordingPosition,
    read_chunk,
    verify,
    write_chunk,
)
from lattice.domain.recording_path import chunk_number, recorded_allocation
from lattice.domain.recording_proof import (
    RecordingLedger,
    entries_about_recordings,
    recorded_session,
    recording_removal,
)
from lattice.domain.sealed import binding, seal_object
from tests.fakes.finished_recordings import KEY, finished_recording

WHOLE = finished_recording(7, 3)
_NAME = WHOLE.path.name
_NOW = datetime(2026, 11, 19, tzinfo=UTC)
_ACTS = (AuditAct.ATTACH_END, AuditAct.RECORDING_REMOVED)
TOKENS = (
    b'{"events":0,"input_bytes":0,"last_us":0,"output_bytes":0,"reason":""}',
    b'{"version":3,"term":{"cols":80,"rows":24,"type":"xterm"},"timestamp":1}',
    b'[0.250000,"o","$ "]',
    b'[1.1,"i","l"]',
    b'[0,"r","80x24"]',
    b'"\\ud800"',
    b"1e999",
    b"9" * 40,
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"recording of 3 chunks, last ",
    b"the retention of 30 days is over",
    b'"act":"attach-end"',
)


def seeds() -> Iterable[bytes]:
    for last in (b"\0", b"\1"):
        for event in (b'[0.25,"o","$ "]\n', b'[0.25,"o","\\u00e9\\udcff"]\n', b'[0,"r","9x9"]\n'):
            yield b"T" + last + TOKENS[0] + b"\n" + TOKENS[1] + b"\n" + event
    yield b"V" + bytes((0, 0, 1, 1, 2, 2))
    yield b"V" + bytes((0, 0, 2, 2))
    yield b"V" + bytes((0, 0, 1, 2, 2, 1))
    yield b"V" + bytes((0, 0, 1, 1, 2, 9)) + b"LATREC01"
    yield b"D" + WHOLE.end.detail.encode()
    yield b"D" + WHOLE.removal(30).detail.encode()
    for named in (WHOLE.end, WHOLE.removal(30)):
        yield b"E" + b"0" * 64 + b" " + encode(entry_of(named, 1, _NOW)) + b"\n"
    yield b"K" + WHOLE.keys[2].encode()


def try_one(data: bytes) -> None:
    check = _READERS.get(data[:1])
    if check is not None:
        check(data[1:])


def _text(data: bytes) -> None:
    """The text of a chunk, as who has the key could seal it."""
    head = ChunkHead(0, _NAME.first_link, data[:1] == b"\1")
    bound = binding(
        "recording", _NAME.cluster, _NAME.allocation, _NAME.session,
        head.number, head.before.hex(), int(head.last),
    )  # fmt: skip
    sealed = seal_object(KEY, bound, zstd.compress(data[1:]))
    try:
        text = read_chunk(KEY, _NAME, head.encode() + sealed)
    except BadRecording:
        return
    begin = RecordingPosition(0, _NAME.first_link, text.begin)
    again, _ = write_chunk(KEY, _NAME, begin, text, last=head.last)
    found = read_chunk(KEY, _NAME, again.data)
    assert (found.begin, found.events, found.header) == (text.begin, text.events, text.header)


def _chain(data: bytes) -> None:
    """Pairs: the number of a chunk, and which one it is; the last takes the rest."""
    chunks: list[tuple[int, bytes]] = []
    rest = iter(data)
    for number, which in islice(zip(rest, rest, strict=False), 8):
        forged = which >= len(WHOLE.chunks)
        chunks.append((number, bytes(rest) if forged else WHOLE.chunks[which]))
    with suppress(BadRecording):
        verify(_NAME, chunks, WHOLE.anchor)
        assert chunks == list(enumerate(WHOLE.chunks))
    with suppress(BadRecording):
        verify(_NAME, chunks, key=KEY)
        assert chunks == list(enumerate(WHOLE.chunks))


def _detail(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    ledger = RecordingLedger()
    for act, event in zip(_ACTS, (WHOLE.end, WHOLE.removal(1)), strict=True):
        made = AuditEvent(
            event=event.event, act=act, allocation=event.allocation, target=event.target,
            detail=text, of_tenant=text[:50],
        )  # fmt: skip
        entry = entry_of(made, 1, _NOW)
        recorded, removal = recorded_session(entry), recording_removal(entry)
        if recorded is not None:
            assert recorded.name == _NAME
            with suppress(BadKeyPart):
                assert recorded_allocation(recorded.path.key(0)) == _NAME.allocation
            ledger.add(recorded, BadRecording(0, "it is missing"))
        if removal is not None:
            ledger.remove(removal)


def _line(data: bytes) -> None:
    for entry in entries_about_recordings(data.splitlines(keepends=True)):
        assert entry.act in _ACTS or b'"act":"' in data
        recorded_session(entry)
        recording_removal(entry)


def _key(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    recorded_allocation(text)
    number = chunk_number(text)
    assert number is None or f"{number:010d}" == text


_READERS: dict[bytes, Callable[[bytes], None]] = {
    b"T": _text,
    b"V": _chain,
    b"D": _detail,
    b"E": _line,
    b"K": _key,
}
