"""The chunks of one recording on the node's disk, until the object store has them.

    recordings/SESSION/order      what is recorded
    recordings/SESSION/part.N     chunks from number N on, each after its size

Chunks are sealed before they come here. A chunk is durable when `append` returns. A torn chunk at
the end of a file was never durable. A file is removed when all its chunks are stored elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from lattice.base.strictjson import read_fields, read_json
from lattice.domain.recording import LARGEST_CHUNK_BYTES, ChunkHead
from lattice.features.attach.recording_frames import RecordingOrder

RESERVED_BYTES = 64 * 1024 * 1024
"""No recording begins, or goes on, with less free space."""
ABANDONED_S = 30 * 24 * 3600.0
_PART_BYTES = 4 * 1024 * 1024
_SIZE = struct.Struct("<I")
_ORDER = "order"
_PART = "part."


class DiskFull(OSError):
    """There is not enough free space for a recording."""


class ChunkFiles:
    """The folder of one recording. The methods block: they are called in threads."""

    def __init__(self, folder: Path, *, reserved_bytes: int = RESERVED_BYTES) -> None:
        self._folder = folder
        self._reserved_bytes = reserved_bytes
        self._file: BinaryIO | None = None
        self._file_bytes = 0
        self._ends: dict[int, int] = {}
        """The last chunk of each finished part, by its first one."""
        self._first = -1
        self._last = -1

    def begin(self, order: RecordingOrder) -> None:
        """Create the folder. Raises `OSError`."""
        self._folder.parent.mkdir(mode=0o700, exist_ok=True)
        self._check_space(self._folder.parent)
        self._folder.mkdir(mode=0o700)
        file = self._folder / _ORDER
        with file.open("xb") as content:
            content.write(json.dumps(asdict(order)).encode())
            content.flush()
            os.fsync(content.fileno())
        _sync(self._folder)
        _sync(self._folder.parent)

    def append(self, number: int, chunk: bytes) -> None:
        """Write a chunk; it is durable when this returns. Raises `OSError`."""
        if self._file is None or self._file_bytes >= _PART_BYTES:
            self._next_part(number)
        assert self._file is not None
        record = _SIZE.pack(len(chunk)) + chunk
        written = 0
        while written < len(record):
            written += os.write(self._file.fileno(), record[written:])
        os.fdatasync(self._file.fileno())
        self._file_bytes += len(record)
        self._last = number

    def stored(self, number: int) -> None:
        """All chunks up to this one are stored elsewhere: remove finished parts."""
        for first, last in list(self._ends.items()):
            if last <= number:
                with suppress(OSError):
                    (self._folder / f"{_PART}{first}").unlink()
                del self._ends[first]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove all of it: the object store has every chunk."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _next_part(self, number: int) -> None:
        self._check_space(self._folder)
        if self._file is not None:
            self._ends[self._first] = self._last
            self._file.close()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._folder / f"{_PART}{number}", flags, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._first, self._file_bytes = number, 0
        _sync(self._folder)

    def _check_space(self, folder: Path) -> None:
        found = os.statvfs(folder)
        if found.f_bavail * found.f_frsize < self._reserved_bytes:
            raise DiskFull("the disk is full")


def remove_abandoned(recordings: Path, now_s: float, but: Collection[str] = ()) -> tuple[str, ...]:
    """Remove recordings that no server has asked for in a long time; returns their sessions.

    Servers ask for a quarter of an hour, and as long again as they were away. `but`: not these.
    """
    removed = []
    for folder in recordings.iterdir() if recordings.exists() else ():
        if folder.name in but:
            continue
        with suppress(OSError):
            newest_s = max(each.stat().st_mtime for each in (folder, *folder.iterdir()))
            if now_s - newest_s > ABANDONED_S:
                shutil.rmtree(folder)
                removed.append(folder.name)
    return tuple(removed)


def read_order(folder: Path) -> RecordingOrder | None:
    """What is recorded there; None if that can't be read."""
    try:
        return read_fields(read_json((folder / _ORDER).read_bytes()), RecordingOrder)
    except (OSError, ValueError):
        return None


def durable_chunks(folder: Path) -> Iterator[bytes]:
    """The chunks in a folder, in order. Raises `OSError`."""
    names = [each.name for each in folder.iterdir() if each.name.startswith(_PART)]
    for name in sorted(names, key=lambda each: int(each.removeprefix(_PART))):
        with (folder / name).open("rb") as file:
            while len(head := file.read(_SIZE.size)) == _SIZE.size:
                (size,) = _SIZE.unpack(head)
                chunk = file.read(min(size, LARGEST_CHUNK_BYTES))
                if len(chunk) != size:
                    break
                ChunkHead.parse(chunk)
                yield chunk


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
