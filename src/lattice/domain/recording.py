"""Recordings of terminals in sensitive work: a chain of sealed chunks. Pure.

    chunk  = head , sealed text
    head   = LATREC01 , number(8) , flags(1) , link of the chunk before(32)
    text   = zstd( facts as a line of JSON , lines of asciicast v3 )

The link of a chunk is the SHA-256 of the whole chunk. The link before the first is made from the
names of cluster, allocation and session. So who has no key can verify that a recording is whole,
and the audit log needs only the last link. The text is sealed and bound to its head, cluster,
allocation and session. So with the key a changed chunk is told from its neighbours.

The facts count what came before the chunk. So whoever closes a recording needs its last chunk only.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any
from urllib.parse import quote, unquote

from lattice.domain.asciicast import (
    BadCast,
    CastEvent,
    CastHeader,
    CastKind,
    event_line,
    read_event,
    read_header,
)
from lattice.domain.sealed import BadSealed, DataKey, binding, open_object, seal_object

LARGEST_TEXT_BYTES = 8 * 1024 * 1024
"""Of the text of one chunk."""
LARGEST_CHUNK_BYTES = LARGEST_TEXT_BYTES + 64 * 1024
LINK_BYTES = 32
MOST_CHUNKS = 100_000_000
_MARK = b"LATREC01"
_HEAD = struct.Struct(f">8sQB{LINK_BYTES}s")
_LAST = 1
_CHAIN = b"lattice recording 1\n"
_LEVEL = 1
_LONGEST_REASON = 300
_LARGEST_COUNT = 1 << 62


class BadRecording(ValueError):
    """A recording is not whole. `chunk` is the number of the first bad one."""

    def __init__(self, chunk: int, problem: str) -> None:
        super().__init__(f"chunk {chunk}: {problem}")
        self.chunk = chunk
        self.problem = problem


class MissingChunk(BadRecording):
    """A chunk is not there, as far as one can see."""

    def __init__(self, chunk: int) -> None:
        super().__init__(chunk, "it is missing")


@dataclass(frozen=True, slots=True)
class RecordingName:
    """What a recording is of. Its chunks can't be taken for those of another."""

    cluster: str
    allocation: str
    """The identity of the allocation: the id with the time of its first submit."""
    session: str

    @property
    def first_link(self) -> bytes:
        """The link before the first chunk."""
        named = binding(self.cluster, self.allocation, self.session)
        return hashlib.sha256(_CHAIN + named).digest()


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """The clear part of a chunk."""

    number: int
    before: bytes
    last: bool = False

    def encode(self) -> bytes:
        return _HEAD.pack(_MARK, self.number, _LAST if self.last else 0, self.before)

    @classmethod
    def parse(cls, chunk: bytes) -> ChunkHead:
        """Raises `ValueError`."""
        if len(chunk) < _HEAD.size:
            raise ValueError("it is cut")
        mark, number, flags, before = _HEAD.unpack_from(chunk)
        if mark != _MARK or flags not in (0, _LAST):
            raise ValueError("it is no part of a recording")
        return cls(number, before, flags == _LAST)


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts from the beginning of a recording."""

    events: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    last_us: int = 0
    """The time of the last event."""

    def after(self, events: Iterable[CastEvent]) -> Totals:
        """These, with the events that follow."""
        count, typed, shown, last_us = self.events, self.input_bytes, self.output_bytes, 0
        for event in events:
            count += 1
            last_us = max(last_us, event.at_us)
            if event.kind is CastKind.INPUT:
                typed += len(event.data)
            elif event.kind is CastKind.OUTPUT:
                shown += len(event.data)
        return Totals(count, typed, shown, max(self.last_us, last_us))


@dataclass(frozen=True, slots=True)
class RecordingPosition:
    """Where a recording goes on: what the next chunk has to name."""

    number: int
    before: bytes
    totals: Totals = Totals()


@dataclass(frozen=True, slots=True)
class ChunkText:
    """The content of a chunk."""

    begin: Totals
    """Of what came before it."""
    events: tuple[CastEvent, ...] = ()
    header: CastHeader | None = None
    """In the first chunk only."""
    reason: str = ""
    """In the last chunk only: why the recording ended."""

    @property
    def end(self) -> Totals:
        return self.begin.after(self.events)


@dataclass(frozen=True, slots=True)
class RecordedChunk:
    """A chunk as it is stored."""

    head: ChunkHead
    link: bytes
    data: bytes


def link_of(chunk: bytes) -> bytes:
    return hashlib.sha256(chunk).digest()


def write_chunk(
    key: DataKey, name: RecordingName, position: RecordingPosition, text: ChunkText, *, last: bool
) -> tuple[RecordedChunk, RecordingPosition]:
    """The next chunk of a recording, and where it goes on."""
    if (position.number == 0) != (text.header is not None):
        raise ValueError("the first chunk, and no other, has a header")
    begin = position.totals
    facts = {**asdict(begin), "reason": text.reason[:_LONGEST_REASON]}
    lines = [json.dumps(facts, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"]
    if text.header is not None:
        lines.append(text.header.line())
    before_us = begin.last_us
    for event in text.events:
        lines.append(event_line(event, before_us))
        before_us = max(before_us, event.at_us)
    plain = b"".join(lines)
    if len(plain) > LARGEST_TEXT_BYTES:
        raise ValueError("a chunk is too large")
    from lattice.base.zstd import zstd  # noqa: PLC0415 - who only verifies may not have it

    head = ChunkHead(position.number, position.before, last)
    data = head.encode() + seal_object(key, _bound(name, head), zstd.compress(plain, _LEVEL))
    link = link_of(data)
    after = RecordingPosition(position.number + 1, link, begin.after(text.events))
    return RecordedChunk(head, link, data), after


def read_chunk(key: DataKey, name: RecordingName, data: bytes) -> ChunkText:
    """The content of one chunk. Raises `BadRecording`; the chain is not checked."""
    try:
        head = ChunkHead.parse(data)
    except ValueError as problem:
        raise BadRecording(0, str(problem)) from None
    try:
        packed = open_object(key, _bound(name, head), data[_HEAD.size :])
        plain = _unpacked(packed)
        return _text(plain, head)
    except (BadSealed, BadCast) as problem:
        raise BadRecording(head.number, str(problem)) from None


def _bound(name: RecordingName, head: ChunkHead) -> bytes:
    return binding(
        "recording",
        name.cluster,
        name.allocation,
        name.session,
        head.number,
        head.before.hex(),
        int(head.last),
    )


def _unpacked(packed: bytes) -> bytes:
    from lattice.base.zstd import zstd  # noqa: PLC0415 - as above

    unpacking = zstd.ZstdDecompressor()
    try:
        plain = unpacking.decompress(packed, LARGEST_TEXT_BYTES + 1)
    except (zstd.ZstdError, EOFError):
        raise BadCast("it does not expand") from None
    if not unpacking.eof or unpacking.unused_data or len(plain) > LARGEST_TEXT_BYTES:
        raise BadCast("it does not expand to its size")
    return plain


def _text(plain: bytes, head: ChunkHead) -> ChunkText:
    if not plain.endswith(b"\n"):
        raise BadCast("its text is cut")
    facts, *lines = plain[:-1].split(b"\n")
    begin, reason = _facts(facts)
    header = None
    if head.number == 0:
        if not lines:
            raise BadCast("it has no header")
        header = read_header(lines.pop(0))
    events: list[CastEvent] = []
    at_us = begin.last_us
    for line in lines:
        events.append(read_event(line, at_us))
        at_us = events[-1].at_us
    return ChunkText(begin, tuple(events), header, reason)


def _facts(line: bytes) -> tuple[Totals, str]:
    names = [each.name for each in fields(Totals)]
    try:
        document: Any = json.loads(line)
        counts = [document[each] for each in names]
        reason = document["reason"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadCast("its facts can't be parsed") from None
    sound = all(type(each) is int and 0 <= each < _LARGEST_COUNT for each in counts)
    if not sound or not isinstance(reason, str):
        raise BadCast("its facts can't be parsed")
    return Totals(*counts), reason


@dataclass(frozen=True, slots=True)
class Anchor:
    """The end of a recording, from the audit log."""

    chunks: int
    link: bytes
    """Of the last chunk; of a recording without chunks the one before the first."""


class RecordingVerifier:
    """Verifies the chunks of one recording, in order.

    Without a key it verifies the chain alone. Then a change is found, and its place is that of the
    chunk that the next one does not name.
    """

    def __init__(
        self,
        name: RecordingName,
        anchor: Anchor | None = None,
        key: DataKey | None = None,
        position: RecordingPosition | None = None,
    ) -> None:
        """`position`: begin there, after chunks that were verified before."""
        self._name = name
        self._anchor = anchor
        self._key = key
        self._next = position or first_position(name)
        self._over = False

    @property
    def position(self) -> RecordingPosition:
        """Where the recording goes on, after the chunks so far. Without a key it has no totals."""
        return self._next

    @property
    def is_over(self) -> bool:
        """True after the last chunk."""
        return self._over

    def take(self, number: int, chunk: bytes) -> ChunkText | None:
        """Verify the chunk that is stored under this number. Returns its content with a key.

        Raises `BadRecording`, which names the first chunk that is bad.
        """
        expected = self._next.number
        if number > expected and not self._over:
            raise MissingChunk(expected)
        if number < expected:
            raise BadRecording(number, "it is there twice")
        try:
            head = ChunkHead.parse(chunk)
        except ValueError as problem:
            raise BadRecording(number, str(problem)) from None
        if head.number != number:
            raise BadRecording(number, f"it is not this chunk, it names itself {head.number}")
        if self._over and head.before != self._next.before:
            self._refuse_link(number)
        if self._over:
            raise BadRecording(number, "it comes after the last chunk")
        text = read_chunk(self._key, self._name, chunk) if self._key is not None else None
        if head.before != self._next.before:
            self._refuse_link(number)
        if text is not None and text.begin != self._next.totals:
            raise BadRecording(number, "its counts do not follow from those before")
        self._next = RecordingPosition(
            number + 1, link_of(chunk), text.end if text is not None else Totals()
        )
        self._over = head.last
        anchor = self._anchor
        if anchor is not None and anchor.chunks == number + 1 and anchor.link != self._next.before:
            raise BadRecording(number, "it is not the one that the audit log names")
        return text

    def _refuse_link(self, number: int) -> None:
        """With a key both chunks are sound by themselves, so one is of another chain."""
        if self._key is not None or number == 0:
            raise BadRecording(number, "it does not follow the chunk before")
        raise BadRecording(number - 1, "it was changed: the next one names another")

    def finish(self) -> None:
        """Verify that nothing is missing at the end. Raises `BadRecording`."""
        chunks = self._next.number
        if self._anchor is not None and chunks < self._anchor.chunks:
            raise MissingChunk(chunks)
        if self._anchor is not None and chunks > self._anchor.chunks:
            raise BadRecording(self._anchor.chunks, "the audit log does not name it")
        if self._anchor is not None and chunks == 0:
            return
        if not self._over:
            raise MissingChunk(chunks)


def verify(
    name: RecordingName,
    chunks: Iterable[tuple[int, bytes]],
    anchor: Anchor | None = None,
    key: DataKey | None = None,
) -> RecordingPosition:
    """Verify a whole recording. Raises `BadRecording`."""
    verifier = RecordingVerifier(name, anchor, key)
    for number, chunk in chunks:
        verifier.take(number, chunk)
    verifier.finish()
    return verifier.position


def position_after(key: DataKey, name: RecordingName, chunk: bytes) -> RecordingPosition:
    """Where a recording goes on after this chunk. Raises `BadRecording`."""
    text = read_chunk(key, name, chunk)
    return RecordingPosition(ChunkHead.parse(chunk).number + 1, link_of(chunk), text.end)


def first_position(name: RecordingName) -> RecordingPosition:
    return RecordingPosition(0, name.first_link)


def closing_text(position: RecordingPosition, header: CastHeader, reason: str) -> ChunkText:
    """The text of a last chunk without events."""
    text = ChunkText(position.totals, reason=reason)
    return text if position.number else replace(text, header=header)


_ANCHOR = re.compile(
    r"session ([0-9a-f]{32}): (\S{0,40}), recording of (\d{1,9}) chunks, last ([0-9a-f]{64}), "
    r"account (\S{0,200})",
    re.ASCII,
)


def anchor_text(session: str, anchor: Anchor, reason: str, *, account: str) -> str:
    """The detail of the entry that names a recording in the audit log."""
    return (
        f"session {session}: {reason}, recording of {anchor.chunks} chunks, "
        f"last {anchor.link.hex()}, account {quote(account, safe='')}"
    )


@dataclass(frozen=True, slots=True)
class AnchoredRecording:
    """A recording that an entry of the audit log names."""

    session: str
    reason: str
    anchor: Anchor
    account: str


def read_anchor(detail: str) -> AnchoredRecording | None:
    """What the detail of an entry names; None if it names no recording."""
    found = _ANCHOR.fullmatch(detail)
    if found is None:
        return None
    session, reason, chunks, link, account = found.groups()
    return AnchoredRecording(
        session, reason, Anchor(int(chunks), bytes.fromhex(link)), unquote(account)
    )
