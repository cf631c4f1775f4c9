"""The spool of one stream: text that was read and is not yet stored, in a folder on disk.

- head.json: what the stream is.
- stored.json: up to where the object store has it; written before a chunk is removed.
- file.json: which file it is read from.
- 000007.chunk: a closed chunk, exactly the object to store.
- open.*: the open chunk (`openchunk`).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from lattice.base.failpoints import failpoint
from lattice.domain.logchunk import (
    CHUNK_BYTES,
    BadChunk,
    ChunkIndex,
    expand,
    gap_records,
    index_frame,
    pieces_of,
    read_index,
)
from lattice.domain.logs import Gap, GapCause, LogKind, LogSource, Piece, Position
from lattice.features.logs.node.durable import replace, sync_folder
from lattice.features.logs.node.openchunk import OpenChunk
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

    def __init__(self, folder: Path, head: StreamHead, stored: StoredChunk | None = None) -> None:
        """`stored` is what the server has, for a node with a lost or new folder."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self.head = head
        if not (folder / "head.json").exists():
            replace(folder / "head.json", msgspec.json.encode(head))
        self.stored = _read(folder / "stored.json", StoredChunk) or stored or StoredChunk()
        self._lock = threading.Lock()
        self._number = self.stored.number
        self._chunks = self.stored.chunks if self._number else 0
        self._over = self.stored.last
        self._newest_gaps: deque[Gap] = deque(maxlen=_MOST_GAPS)
        self._open = OpenChunk(folder, self._recover_closed(self.stored.position))
        self._newest_gaps += self._open.gaps

    @property
    def end(self) -> Position:
        """The position after the last byte that is here."""
        with self._lock:
            return self._open.end

    @property
    def folder(self) -> Path:
        """The folder on disk."""
        return self._folder

    @property
    def over(self) -> bool:
        """True once its last chunk is closed."""
        return self._over

    @property
    def mark(self) -> FileMark | None:
        """The file as last recorded."""
        return mark_of(self._folder)

    @property
    def size_bytes(self) -> int:
        """The size on disk."""
        with os.scandir(self._folder) as files:
            return sum(each.stat().st_size for each in files)

    def remember(self, mark: FileMark) -> None:
        """Record which file it is; call this before adding text from it."""
        replace(self._folder / "file.json", msgspec.json.encode(asdict(mark)))
        failpoint("spool.mark.written")

    def add(self, text: bytes, time_ms: int, *, late: bool = False) -> None:
        """Keep text. Raises `OSError` if the disk is full; `end` shows what is kept."""
        with self._lock:
            self._open.add(text, time_ms, late=late)

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
            if not self._over:
                self._seal(last=last)

    def _seal(self, *, last: bool) -> None:
        under_way = self._open
        under_way.make_frame()
        if not (under_way.frames or under_way.gaps or last):
            return
        index = ChunkIndex(
            node=self.head.node,
            job_id=self.head.job_id,
            started=self.head.started,
            kind=self.head.kind,
            source=str(self.head.source),
            path=self.head.path,
            labelled=self.head.labelled,
            offset=under_way.begin.offset,
            line=under_way.begin.line,
            frames=tuple(under_way.frames),
            gap_records=gap_records(under_way.gaps),
            last=last,
            before=self._chunks,
            sha256=under_way.sha256,
        )
        self._write_chunk(under_way.stored_frames(), index_frame(index))
        under_way.restart(index.end)
        self._over = last

    def _write_chunk(self, frames: bytes, index: bytes) -> None:
        unfinished = self._folder / "open.sealed"
        with unfinished.open("wb") as file:
            file.write(frames)
            file.write(index)
            file.flush()
            failpoint("spool.chunk.sealed")
            os.fsync(file.fileno())
        failpoint("spool.chunk.synced")
        self._number += 1
        unfinished.rename(self._folder / f"{self._number:06d}.chunk")
        self._chunks = None if self._chunks is None else self._chunks + 1
        sync_folder(self._folder)
        failpoint("spool.chunk.renamed")

    def closed(self) -> list[tuple[int, Path]]:
        """Chunks that wait to be stored, in order. Safe from another thread."""
        found = sorted(self._folder.glob("[0-9]*.chunk"))
        return [(int(each.stem), each) for each in found]

    def took(self, number: int, stored: StoredChunk) -> None:
        """The object store has this chunk: record that, then delete the chunk here."""
        replace(self._folder / "stored.json", msgspec.json.encode(asdict(stored)))
        self.stored = stored
        failpoint("spool.stored.written")
        (self._folder / f"{number:06d}.chunk").unlink(missing_ok=True)
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
                found = _pieces_in_chunk(path.read_bytes(), offset)
                if found:
                    return found
        return []

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
        for each in self._folder.iterdir():
            each.unlink()
        self._folder.rmdir()

    def _recover_closed(self, begin: Position) -> Position:
        """Where the closed chunks end. Deletes stored ones, and those torn by a power cut."""
        (self._folder / "open.sealed").unlink(missing_ok=True)
        for number, path in self.closed():
            try:
                content = path.read_bytes()
                index = read_index(content, len(content))
            except (OSError, BadChunk):
                index = None
            if index is None or index.begin != begin or number <= self._number:
                path.unlink(missing_ok=True)
                continue
            self._number = number
            self._chunks = None if index.before is None else index.before + 1
            self._over = index.last
            self._newest_gaps += index.gaps
            begin = index.end
        return begin


def _read(file: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _pieces_in_chunk(chunk: bytes, offset: int) -> list[Piece]:
    index = read_index(chunk, len(chunk))
    for placed in index.placed():
        if placed.begin.offset <= offset < placed.end.offset:
            stored = chunk[placed.stored_at :][: placed.frame.stored_bytes]
            pieces = pieces_of(placed, expand(stored, placed.frame))
            return [each.starting_at(offset) for each in pieces if each.end_offset > offset]
    return []
