"""inotify by ctypes: notices of created and removed folders. Independent of Slurm.

It has only what a watcher of control groups needs. Calls block for microseconds. The owner chooses
the thread, one at a time. The kernel removes a watch together with its folder.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

_CREATE = 0x100
_DELETE = 0x200
_MOVED = 0xC0
_DELETE_SELF = 0x400
_OVERFLOW = 0x4000
_IGNORED = 0x8000
_ONLY_FOLDERS = 0x01000000
_WANTED = _CREATE | _DELETE | _MOVED | _DELETE_SELF | _ONLY_FOLDERS
_HEAD = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16


class WatchLimit(Exception):
    """The kernel has no more instances or watches for this user; the message names the limit."""


@dataclass(frozen=True, slots=True)
class FileNotice:
    """A name appeared in a watched folder or vanished. `lost`: notices were dropped."""

    folder: str = ""
    name: str = ""
    made: bool = False
    lost: bool = False


class Inotify:
    """One inotify instance; `fileno` is readable when there are notices."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self._file = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self._file < 0:
            raise _refused("fs.inotify.max_user_instances")
        self._folders: dict[int, str] = {}

    def fileno(self) -> int:
        return self._file

    @property
    def watches(self) -> int:
        return len(self._folders)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def watch(self, folder: str) -> bool:
        """Watch a folder; False if it does not exist or is closed to us. May be repeated."""
        watch = self._libc.inotify_add_watch(self._file, os.fsencode(folder), _WANTED)
        if watch >= 0:
            self._folders[watch] = folder
            return True
        if ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
            return False
        raise _refused("fs.inotify.max_user_watches")

    def read(self) -> list[FileNotice]:
        """All pending notices, in order."""
        notices: list[FileNotice] = []
        while True:
            try:
                data = os.read(self._file, _BUFFER_BYTES)
            except BlockingIOError:
                return notices
            notices += self._decode(data)

    def _decode(self, data: bytes) -> list[FileNotice]:
        notices = []
        at = 0
        while at + _HEAD.size <= len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
            if mask & _OVERFLOW:
                notices.append(FileNotice(lost=True))
            elif mask & _IGNORED:
                # The kernel does not reuse its number, so later notices are not of our watches.
                self._folders.pop(watch, None)
            elif folder := self._folders.get(watch):
                notices.append(FileNotice(folder, name, made=bool(mask & _CREATE)))
        return notices


def _refused(limit: str) -> WatchLimit:
    code = ctypes.get_errno()
    return WatchLimit(f"inotify: {os.strerror(code)} ({limit})")
