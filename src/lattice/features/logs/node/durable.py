"""Atomic writes: a killed process leaves the old or the new data, a full disk leaves the old."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def append(file: BinaryIO, *parts: bytes) -> None:
    """Append all parts; on an `OSError` append none of them. `file` is unbuffered."""
    begin = os.fstat(file.fileno()).st_size
    try:
        written = os.writev(file.fileno(), parts)
        if written < sum(map(len, parts)):
            rest = memoryview(b"".join(parts))[written:]
            while rest:
                rest = rest[file.write(rest) :]
    except OSError:
        file.truncate(begin)
        raise


def replace(file: Path, data: bytes) -> None:
    """Replace a file atomically; the new one is on the disk when this returns."""
    new = file.with_suffix(".new")
    with new.open("wb") as content:
        content.write(data)
        content.flush()
        os.fsync(content.fileno())
    new.rename(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed files of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
