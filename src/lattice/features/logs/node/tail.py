"""One open file, read behind its writer; it detects truncation.

A file was truncated if it is shorter than what was read, or if its first kilobyte changed. It may
have grown past the old position since. Then it is read from its beginning, and text written but not
read is lost. The descriptor stays on the same inode through renames and deletion. This module never
writes, locks the file or waits.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import threading
from dataclasses import dataclass, replace
from typing import TypeAlias

HEAD_BYTES = 1024
MOST_AT_ONCE = 224 * 1024
"""A read fits in a frame and in a message to followers, so neither has to split it."""
_BLOCK = 512
_LARGEST_BLOCK = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """Which file it was, and how its offsets map to the stream's. Kept across restarts."""

    device: int
    inode: int
    head_bytes: int = 0
    head: str = ""
    """SHA-256 of its first `head_bytes` bytes; with a key if the job is sensitive."""
    file_begin: int = 0
    stream_begin: int = 0
    """The byte at `file_begin` of the file is the one at `stream_begin` of the stream."""

    def file_offset(self, offset: int) -> int:
        """The offset in the file for an offset in the stream."""
        return self.file_begin + offset - self.stream_begin


@dataclass(frozen=True, slots=True)
class Read:
    """The result of one read. `anew`: the file was truncated, and `text` is empty."""

    text: bytes
    anew: bool = False
    lost_bytes: int | None = None
    """Bytes that were seen and not read before the truncation; None: unknown."""


class NoTail:
    """A file that can't be opened any more: there is only what was read before."""

    behind_bytes = 0
    written_ms = 0

    def __init__(self, mark: FileMark | None, offset: int) -> None:
        self.mark = mark or FileMark(device=0, inode=0)
        self.offset = offset

    def read(self, most: int = MOST_AT_ONCE) -> Read:  # noqa: ARG002 - as `FileTail` has it
        return Read(b"")

    def check(self) -> Read:
        return Read(b"", lost_bytes=0)

    def read_again(self, offset: int, size: int) -> bytes:  # noqa: ARG002 - as `FileTail` has it
        return b""

    def step_back(self, size: int) -> None:
        self.offset -= size

    def close(self) -> None:
        """Does nothing: no file is open."""


class FileTail:
    """A descriptor and the position in it. This object closes the descriptor."""

    def __init__(
        self, descriptor: int, mark: FileMark | None, offset: int, digest_key: bytes = b""
    ) -> None:
        """`mark` is what was recorded of the file at this stream's `offset`.

        Without a mark the stream is this file from its first byte on. With `digest_key` nobody
        can guess from the mark what the file begins with.
        """
        self._digest_key = digest_key
        self._descriptor = descriptor
        self._open = threading.Lock()
        """Held while another thread reads: a closed descriptor's number may be another file's."""
        self.offset = offset
        """The stream's next byte."""
        self._seen_bytes = 0
        found = os.fstat(descriptor)
        self.mark = mark or FileMark(device=found.st_dev, inode=found.st_ino)

    @property
    def behind_bytes(self) -> int:
        """Bytes in the file that were not read yet."""
        try:
            return max(0, os.fstat(self._descriptor).st_size - self.mark.file_offset(self.offset))
        except OSError:
            return 0

    @property
    def written_ms(self) -> int:
        """The file's modification time in ms; 0 if it is empty or gone.

        Safe from another thread.
        """
        mark = self.mark
        try:
            found = os.fstat(self._descriptor)
        except OSError:
            return 0
        # The number of a descriptor closed at this moment may be another file's.
        same = (found.st_dev, found.st_ino) == (mark.device, mark.inode)
        return found.st_mtime_ns // 1_000_000 if same and found.st_size else 0

    def read(self, most: int = MOST_AT_ONCE) -> Read:
        """Read on; an empty text if there is nothing. Raises `OSError`."""
        found = os.fstat(self._descriptor)
        if not self._is_same(found):
            return self._begin_anew(found)
        position = self.mark.file_offset(self.offset)
        self._seen_bytes = max(self._seen_bytes, found.st_size)
        if found.st_size <= position:
            return Read(b"")
        if self._has_hole(found):
            position = self._past_hole(position)
            if position < 0:
                return Read(b"")
        text = os.pread(self._descriptor, most, position)
        # The text counts only if the file is still the same after the read.
        if not self._is_same(os.fstat(self._descriptor)):
            return self._begin_anew(os.fstat(self._descriptor))
        self.offset += len(text)
        self._learn_head()
        return Read(text)

    def check(self) -> Read:
        """Check without reading: bytes truncated unread, or `anew`."""
        found = os.fstat(self._descriptor)
        if not self._is_same(found):
            return self._begin_anew(found)
        taken = self._seen_bytes - found.st_size
        self._seen_bytes = found.st_size
        position = self.mark.file_offset(self.offset)
        if position < found.st_size and self._has_hole(found):
            self._past_hole(position)
        return Read(b"", lost_bytes=max(0, taken))

    def step_back(self, size: int) -> None:
        """The last `size` bytes were not kept: read them again."""
        self.offset -= size

    def read_again(self, offset: int, size: int) -> bytes:
        """Exactly these bytes of the stream, if they are still in this file; else empty.

        Safe from another thread.
        """
        with self._open:
            mark = self.mark
            if self._descriptor < 0 or offset < mark.stream_begin:
                return b""
            try:
                text = os.pread(self._descriptor, size, mark.file_offset(offset))
                # Checked after the read: the file may have been truncated meanwhile.
                same = len(text) == size and self._is_same(os.fstat(self._descriptor))
            except OSError:
                return b""
            return text if same and self.mark is mark else b""

    def close(self) -> None:
        """Close the file."""
        with self._open:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _is_same(self, found: os.stat_result) -> bool:
        mark = self.mark
        if (found.st_dev, found.st_ino) != (mark.device, mark.inode):
            return False
        if found.st_size < mark.file_offset(self.offset):
            return False
        if not mark.head_bytes:
            return True
        return self._head(mark.head_bytes) == mark.head

    def _has_hole(self, found: os.stat_result) -> bool:
        return bool(self.mark.stream_begin) and found.st_blocks * _BLOCK < found.st_size

    def _begin_anew(self, found: os.stat_result) -> Read:
        unread = self._seen_bytes - self.mark.file_offset(self.offset)
        lost = unread if unread > 0 and found.st_ino == self.mark.inode else None
        self.mark = FileMark(device=found.st_dev, inode=found.st_ino, stream_begin=self.offset)
        self._seen_bytes = 0
        return Read(b"", anew=True, lost_bytes=lost)

    def _past_hole(self, position: int) -> int:
        """The offset where data begins, or -1.

        A writer that does not append continues at its old offset in a truncated file. Before it is
        a hole, which reads as zeros that nobody wrote.
        """
        try:
            data = os.lseek(self._descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return -1
            # This file system does not report holes.
            return position
        if data > position:
            # Holes end at a block; the rest of the block is empty too.
            block = os.pread(self._descriptor, _LARGEST_BLOCK, data)
            data += len(block) - len(block.lstrip(b"\0"))
            self.mark = replace(self.mark, file_begin=data, stream_begin=self.offset)
        return data

    def _learn_head(self) -> None:
        mark = self.mark
        size = min(HEAD_BYTES, mark.file_offset(self.offset))
        if size <= mark.head_bytes:
            return
        self.mark = replace(mark, head_bytes=size, head=self._head(size))

    def _head(self, size: int) -> str:
        text = os.pread(self._descriptor, size, 0)
        if not self._digest_key:
            return hashlib.sha256(text).hexdigest()
        return hmac.digest(self._digest_key, text, "sha256").hex()


Tail: TypeAlias = FileTail | NoTail
"""The source of a stream."""
