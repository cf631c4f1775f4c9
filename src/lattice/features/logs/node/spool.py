"""The spool of one stream: text that was read and is not yet stored, in a folder on disk.

- head.json: what the stream is.
- stored.json: up to where the object store has it; written before a chunk is removed.
- file.json: which file it is read from.
- 000007.chunk: a closed chunk, exactly the object to store.
- open.*: the open chunk (`openchunk`).

Of a sensitive job the text in it is sealed (`stream_seal`). If a folder is sealed and its job is
not sensitive, or the other way, it is emptied. The text is read again from the job's file.

A `SpoolReader` reads it forwards, for a listener that is late or slow.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from lattice.base.failpoints import failpoint
from lattice.domain.job_seal import JobSeal
from lattice.domain.logchunk import (
    CHUNK_BYTES,
    BadChunk,
    ChunkIndex,
    PlacedFrame,
    expand,
    gap_records,
    index_frame,
    pieces_of,
    read_index,
)
from lattice.domain.logs import Gap, GapCause, LogKind, LogSource, Piece, Position
from lattice.features.logs.node.compressor import StartCompression, compress_now
from lattice.features.logs.node.durable import replace, sync_folder
from lattice.features.logs.node.openchunk import OpenChunk, pieces_from
from lattice.features.logs.node.stream_seal import ChunkFile, StreamSeal
from lattice.features.logs.node.tail import FileMark

CHUNK_AGE_MS = 5 * 60 * 1000
_MOST_GAPS = 16
"""Reported to listeners; the store has all of them."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHead:
    """The identity of a stream."""

    node: str
    job_id: int
    started: float
    kind: LogKind
    source: LogSource
    path: str = ""
    labelled: bool = False
    sealed: bool = False
    """True if the folder has sealed text only."""


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """Up to where the object store has a stream, and in how many chunks."""

    number: int = 0
    offset: int = 0
    line: int = 0
    last: bool = False
    chunks: int | None = None
    """The number of this stream's own chunks; numbers are shared with others. None: unknown."""

    @property
    def position(self) -> Position:
        return Position(self.offset, self.line)


def head_of(folder: Path) -> StreamHead | None:
    """The head of the stream in this folder; None if there is none."""
    return _read(folder / "head.json", StreamHead)


def mark_of(folder: Path) -> FileMark | None:
    """The file of the stream in this folder, as last recorded."""
    return _read(folder / "file.json", FileMark)


class StreamSpool:
    """One stream's folder. One thread writes; another may send closed chunks."""

    def __init__(
        self,
        folder: Path,
        head: StreamHead,
        stored: StoredChunk | None = None,
        seal: JobSeal | None = None,
    ) -> None:
        """`stored` is what the server has, for a node with a lost or new folder."""
        head = dataclasses.replace(head, sealed=seal is not None)
        before = head_of(folder)
        if before is not None and before.sealed != head.sealed:
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.head = head
        self.seal = StreamSeal(seal, head.node, head.kind, str(head.source))
        if not (folder / "head.json").exists():
            replace(folder / "head.json", msgspec.json.encode(head))
        self.stored = _read(folder / "stored.json", StoredChunk) or stored or StoredChunk()
        self._lock = threading.Lock()
        self._number = self.stored.number
        self._chunks = self.stored.chunks if self._number else 0
        self.over = self.stored.last
        """True once its last chunk is closed."""
        self._newest_gaps: deque[Gap] = deque(maxlen=_MOST_GAPS)
        begin = self._recover_closed(self.stored.position)
        self._open = OpenChunk(folder, begin, self.seal)
        self._newest_gaps += self._open.gaps

    @property
    def end(self) -> Position:
        """The position after the last byte that is here."""
        with self._lock:
            return self._open.end

    @property
    def mark(self) -> FileMark | None:
        """The file as last recorded."""
        return mark_of(self.folder)

    @property
    def size_bytes(self) -> int:
        """The size on disk."""
        with os.scandir(self.folder) as files:
            return sum(each.stat().st_size for each in files)

    def remember(self, mark: FileMark) -> None:
        """Record which file it is; call this before adding text from it."""
        replace(self.folder / "file.json", msgspec.json.encode(asdict(mark)))
        failpoint("spool.mark.written")

    def add(
        self,
        text: bytes,
        time_ms: int,
        *,
        late: bool = False,
        start: StartCompression = compress_now,
    ) -> None:
        """Keep text. Raises `OSError` if the disk is full; `end` shows what is kept."""
        with self._lock:
            self._open.add(text, time_ms, late=late, start=start)

    def start_full_frame(self, start: StartCompression = compress_now) -> Future[bytes] | None:
        """Begin to compress text that makes a good frame, and write the frame before it.

        Returns the frame if the text that was added last is all of it.
        """
        if not self._open.is_full:
            return None
        # The lock is free meanwhile: viewers' requests need it.
        self._open.wait_compressed()
        with self._lock:
            return self._open.start_frame(start)

    def write_frame(self) -> None:
        """Write the frame that is being compressed, if there is one. Waits for it."""
        self._open.wait_compressed()
        with self._lock:
            self._open.write_frame()

    def add_gap(self, cause: GapCause, lost_bytes: int | None, time_ms: int) -> None:
        """Record a gap at the end; a repeated one counts once."""
        with self._lock:
            self._open.add_gap(cause, lost_bytes, time_ms)
            self._newest_gaps.append(self._open.gaps[-1])

    def close_if_due(self, now_ms: int) -> bool:
        """Close the open chunk if it is full or old enough; True if it was due."""
        began = self._open.began_ms
        full = self._open.stored_bytes >= CHUNK_BYTES
        due = full or (began is not None and now_ms - began >= CHUNK_AGE_MS)
        if due:
            self.close_chunk()
        return due

    def close_chunk(self, *, last: bool = False) -> None:
        """Close the open chunk. With `last` the stream ends, and even an empty chunk is written."""
        with self._lock:
            if not self.over:
                self._seal(last=last)

    def _seal(self, *, last: bool) -> None:
        chunk = self._open
        chunk.make_frame()
        if not (chunk.frames or chunk.gaps or last):
            return
        index = ChunkIndex(
            node=self.head.node,
            job_id=self.head.job_id,
            started=self.head.started,
            kind=self.head.kind,
            source=str(self.head.source),
            path=self.head.path,
            labelled=self.head.labelled,
            offset=chunk.begin.offset,
            line=chunk.begin.line,
            frames=tuple(chunk.frames),
            gap_records=gap_records(chunk.gaps),
            last=last,
            before=self._chunks,
            sha256=chunk.sha256,
        )
        self._write_chunk(index_frame(index))
        chunk.restart(index.end)
        self.over = last

    def _write_chunk(self, index: bytes) -> None:
        unfinished = self.folder / "open.sealed"
        with unfinished.open("wb") as file:
            if self.seal.is_sealed:
                content = self._open.read_frames() + index
                file.write(self.seal.chunk(self._number + 1, content))
            else:
                self._open.copy_frames(file.fileno())
                file.write(index)
            file.flush()
            failpoint("spool.chunk.sealed")
            os.fsync(file.fileno())
        failpoint("spool.chunk.synced")
        self._number += 1
        unfinished.rename(self.folder / f"{self._number:06d}.chunk")
        self._chunks = None if self._chunks is None else self._chunks + 1
        sync_folder(self.folder)
        failpoint("spool.chunk.renamed")

    def closed(self) -> list[tuple[int, Path]]:
        """Chunks that wait to be stored, in order. Safe from another thread."""
        found = sorted(self.folder.glob("[0-9]*.chunk"))
        return [(int(each.stem), each) for each in found]

    def read_closed(self, number: int, path: Path) -> tuple[bytes, ChunkIndex]:
        """A closed chunk as it is sent, and its index. Raises `BadChunk`."""
        content = path.read_bytes()
        chunk = self.seal.open_chunk(number, content)
        return content, read_index(chunk, len(chunk))

    def took(self, number: int, stored: StoredChunk) -> None:
        """The object store has this chunk: record that, then delete the chunk here."""
        replace(self.folder / "stored.json", msgspec.json.encode(asdict(stored)))
        self.stored = stored
        failpoint("spool.stored.written")
        (self.folder / f"{number:06d}.chunk").unlink(missing_ok=True)
        failpoint("spool.chunk.dropped")

    def pieces(self, offset: int) -> list[Piece]:
        """The text at an offset, up to the end of its frame; empty if it is not here.

        Safe from another thread, as is `gaps`.
        """
        with self._lock:
            if offset >= self._open.begin.offset:
                return self._open.pieces(offset)
            closed = self.closed()
        for _, path in closed:
            with suppress(OSError, BadChunk):
                found = self._pieces_in_chunk(path, offset)
                if found:
                    return found
        return []

    def _pieces_in_chunk(self, path: Path, offset: int) -> list[Piece]:
        with ChunkFile(path, self.seal) as chunk:
            for placed in chunk.index().placed():
                if placed.begin.offset <= offset < placed.end.offset:
                    text = expand(_stored(chunk, placed), placed.frame)
                    return pieces_from(pieces_of(placed, text), offset)
        return []

    def stored_frame(self, offset: int) -> tuple[PlacedFrame, bytes] | None:
        """The frame of the open chunk with the text at an offset. Safe from another thread."""
        with self._lock:
            return self._open.stored_frame(offset)

    def gaps(self) -> tuple[Gap, ...]:
        """The gaps of the open chunk."""
        with self._lock:
            return tuple(self._open.gaps)

    @property
    def newest_gaps(self) -> tuple[Gap, ...]:
        """The newest 16 gaps; the store may not have them yet. Safe from another thread."""
        with self._lock:
            return tuple(self._newest_gaps)

    def close(self) -> None:
        """Close the files; their content stays."""
        self._open.close()

    def remove(self) -> None:
        """Delete the folder, after everything is stored."""
        self.close()
        for each in self.folder.iterdir():
            each.unlink()
        self.folder.rmdir()

    def _recover_closed(self, begin: Position) -> Position:
        """Where the closed chunks end. Deletes stored ones, and those torn by a power cut."""
        (self.folder / "open.sealed").unlink(missing_ok=True)
        for number, path in self.closed():
            try:
                with ChunkFile(path, self.seal) as chunk:
                    index = chunk.index()
            except (OSError, BadChunk):
                index = None
            if index is None or index.begin != begin or number <= self._number:
                path.unlink(missing_ok=True)
                continue
            self._number = number
            self._chunks = None if index.before is None else index.before + 1
            self.over = index.last
            self._newest_gaps += index.gaps
            begin = index.end
        return begin


@dataclass(slots=True)
class _HeldChunk:
    file: ChunkFile
    frames: tuple[PlacedFrame, ...]
    number: int
    """The frame that was read last: the next request is mostly for the next one."""

    def frame_at(self, offset: int) -> PlacedFrame | None:
        order = (*range(self.number, len(self.frames)), *range(self.number))
        for number in order:
            placed: PlacedFrame = self.frames[number]
            if placed.begin.offset <= offset < placed.end.offset:
                self.number = number
                return placed
        return None

    def stored(self, placed: PlacedFrame) -> bytes:
        return _stored(self.file, placed)


class SpoolReader:
    """Reads one spool. Used by one thread at a time.

    A closed chunk stays open once its reading began. So it can be read to its end even if it was
    stored and removed meanwhile.
    """

    def __init__(self, spool: StreamSpool) -> None:
        self._spool = spool
        self._held: _HeldChunk | None = None

    def pieces(self, offset: int) -> list[Piece]:
        """The text at an offset, up to the end of its frame; empty if it is not here any more."""
        found = self._in_held(offset)
        if found is None and self._hold(offset):
            found = self._in_held(offset)
        return self._spool.pieces(offset) if found is None else found

    def stored_frame(self, offset: int) -> tuple[PlacedFrame, bytes] | None:
        """The frame with the text at an offset, as it is stored; None if there is none."""
        placed = self._held.frame_at(offset) if self._held else None
        if placed is None and self._hold(offset):
            placed = self._held.frame_at(offset) if self._held else None
        if placed is None or self._held is None:
            return self._spool.stored_frame(offset)
        try:
            return placed, self._held.stored(placed)
        except (OSError, BadChunk):
            self.close()
            return None

    def close(self) -> None:
        """Close the held chunk."""
        if self._held is not None:
            self._held.file.close()
            self._held = None

    def _in_held(self, offset: int) -> list[Piece] | None:
        held = self._held
        placed = held.frame_at(offset) if held else None
        if held is None or placed is None:
            return None
        try:
            text = expand(held.stored(placed), placed.frame)
        except (OSError, BadChunk):
            self.close()
            return None
        return pieces_from(pieces_of(placed, text), offset)

    def _hold(self, offset: int) -> bool:
        for _, path in self._spool.closed():
            with suppress(OSError, BadChunk):
                file = ChunkFile(path, self._spool.seal)
                frames = _frames(file)
                if frames and frames[0].begin.offset <= offset < frames[-1].end.offset:
                    self.close()
                    self._held = _HeldChunk(file, frames, 0)
                    return True
                file.close()
        return False


def _frames(file: ChunkFile) -> tuple[PlacedFrame, ...]:
    try:
        return tuple(file.index().placed())
    except BaseException:
        file.close()
        raise


def _stored(chunk: ChunkFile, placed: PlacedFrame) -> bytes:
    """A frame of a chunk, compressed."""
    return chunk.read(placed.stored_at, placed.stored_at + placed.frame.stored_bytes)


def _read(file: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
