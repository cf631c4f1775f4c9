"""Seals what is written of a stream on this node, if its job is sensitive; and reads chunks.

Text that was just read and frames are sealed part by part, because their files grow. A closed chunk
is one sealed object, so a reader opens the segments that it needs. What was changed, cut, moved or
sealed with another key is as good as torn: `BadChunk`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

import msgspec

from lattice.domain.job_seal import JobSeal, SealedStream
from lattice.domain.logchunk import (
    TAIL_BYTES,
    BadChunk,
    ChunkIndex,
    Frame,
    index_size,
    read_index,
)
from lattice.domain.logs import LogKind
from lattice.domain.sealed import (
    FOOT_BYTES,
    PART_OVERHEAD_BYTES,
    BadSealed,
    Foot,
    SealedRange,
    open_object,
    open_part,
    seal_object,
    seal_part,
)


class StreamSeal:
    """Of one stream; without `seal` everything stays as it is."""

    def __init__(self, seal: JobSeal | None, node: str, kind: LogKind, source: str) -> None:
        self._key = seal.key if seal else None
        self._name = (
            seal.stream(node, kind.value, source) if seal else SealedStream("", "", "", "", "")
        )
        self.part_bytes = PART_OVERHEAD_BYTES if seal else 0
        """By how much a sealed part is longer."""
        self.digest_key = seal.key.digest_key() if seal else b""
        """For digests of text; empty: digests have no key."""

    @property
    def is_sealed(self) -> bool:
        return self._key is not None

    def text(self, text: bytes, offset: int, time_ms: int, *, late: bool) -> bytes:
        """Text as it is written; `open_text` is the inverse."""
        if self._key is None:
            return text
        return seal_part(self._key, self._name.text(offset, time_ms, late=late), text)

    def open_text(self, stored: bytes, offset: int, time_ms: int, *, late: bool) -> bytes:
        return self._open(stored, self._name.text(offset, time_ms, late=late))

    def frame(self, stored: bytes, offset: int, frame: Frame) -> bytes:
        """A frame as it is written; `open_frame` is the inverse."""
        if self._key is None:
            return stored
        return seal_part(self._key, self._name.frame(offset, _entry(frame)), stored)

    def open_frame(self, stored: bytes, offset: int, frame: Frame) -> bytes:
        return self._open(stored, self._name.frame(offset, _entry(frame)))

    def chunk(self, number: int, content: bytes) -> bytes:
        """A chunk as it is written and sent."""
        if self._key is None:
            return content
        return seal_object(self._key, self._name.chunk(number), content)

    def open_chunk(self, number: int, stored: bytes) -> bytes:
        """The content of a whole chunk. Raises `BadChunk`."""
        if self._key is None:
            return stored
        try:
            return open_object(self._key, self._name.chunk(number), stored)
        except BadSealed as fault:
            raise BadChunk(str(fault)) from None

    def read_chunk(self, number: int, foot: Foot, part: SealedRange, stored: bytes) -> bytes:
        """A range of a chunk, from the bytes of its segments. Raises `BadChunk`."""
        assert self._key is not None
        try:
            return part.open(self._key, self._name.chunk(number), foot, stored)
        except BadSealed as fault:
            raise BadChunk(str(fault)) from None

    def _open(self, stored: bytes, bound: bytes) -> bytes:
        if self._key is None:
            return stored
        try:
            return open_part(self._key, bound, stored)
        except BadSealed as fault:
            raise BadChunk(str(fault)) from None


class ChunkFile:
    """A closed chunk on disk, open for reading. Raises `OSError` and `BadChunk`."""

    def __init__(self, path: Path, seal: StreamSeal) -> None:
        self._seal = seal
        self._number = int(path.stem)
        self._file = path.open("rb", buffering=0)
        try:
            stored_bytes = os.fstat(self._file.fileno()).st_size
            self._foot = self._read_foot(stored_bytes) if seal.is_sealed else None
            self.size_bytes = stored_bytes if self._foot is None else self._foot.plain_bytes
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def index(self) -> ChunkIndex:
        """What it contains."""
        size = self.size_bytes
        tail = self.read(max(0, size - TAIL_BYTES), size)
        needed = index_size(tail)
        if needed > len(tail):
            tail = self.read(max(0, size - needed), size)
        return read_index(tail, size)

    def read(self, begin: int, end: int) -> bytes:
        """A range of its content."""
        if self._foot is None:
            return os.pread(self._file.fileno(), end - begin, begin)
        part = SealedRange.of(self._foot.plain_bytes, begin, end)
        stored = os.pread(self._file.fileno(), part.end - part.begin, part.begin)
        return self._seal.read_chunk(self._number, self._foot, part, stored)

    def _read_foot(self, stored_bytes: int) -> Foot:
        tail = os.pread(self._file.fileno(), FOOT_BYTES, max(0, stored_bytes - FOOT_BYTES))
        try:
            return Foot.parse(tail, stored_bytes)
        except BadSealed as fault:
            raise BadChunk(str(fault)) from None


def _entry(frame: Frame) -> bytes:
    return msgspec.json.encode(frame)
