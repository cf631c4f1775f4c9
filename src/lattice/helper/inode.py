"""`statx` and `inotify_add_watch` for an open file; Python has neither call."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from dataclasses import dataclass

from lattice.helper.privilege import checked

_AT_EMPTY_PATH = 0x1000
_AT_STATX_DONT_SYNC = 0x4000
_STATX_BASIC = 0x07FF
_STATX_BTIME = 0x0800
_STATX_MNT_ID = 0x1000
_STATX_BYTES = 256
# mask, (skipped) …, uid, (gid), mode, …, inode, size; other fields by their offset.
_HEAD = struct.Struct("=I16xI4xHxxQQ")
_BORN = struct.Struct("=qI")
_BORN_AT, _DEVICE_AT, _MOUNT_AT = 80, 136, 144

_IN_MODIFY, _IN_ATTRIB, _IN_MOVE_SELF, _IN_DELETE_SELF = 0x2, 0x4, 0x800, 0x400
_WATCHED = _IN_MODIFY | _IN_ATTRIB | _IN_MOVE_SELF | _IN_DELETE_SELF

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a terminal or another device",
    stat.S_IFBLK: "a disk",
    stat.S_IFDIR: "a folder",
}


@dataclass(frozen=True, slots=True)
class Inode:
    """The identity, the owner and the size of a file."""

    device: int
    number: int
    mode: int
    uid: int
    size: int
    born: float | None
    """When it was created, if the file system records that."""
    mount_id: int | None
    """None with kernels before 5.8."""

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.number

    @property
    def kind_fault(self) -> str:
        """What it is if it is no regular file; else an empty string."""
        if stat.S_ISREG(self.mode):
            return ""
        return f"it is {_KINDS.get(stat.S_IFMT(self.mode), 'no file')}"


class Inodes:
    """libc's `statx` and `inotify_add_watch`, with their errors as `OSError`."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def statx(self, descriptor: int) -> Inode:
        """The file behind a descriptor, from the kernel's cache: no file system is queried."""
        room = ctypes.create_string_buffer(_STATX_BYTES)
        how = _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC
        wanted = _STATX_BASIC | _STATX_BTIME | _STATX_MNT_ID
        checked(self._libc.statx(descriptor, b"", how, wanted, room))
        return read_statx(room.raw)

    def watch(self, notices: int, descriptor: int) -> int:
        """Watch a file for writes, moves and removal; returns the number of the watch."""
        path = f"/proc/self/fd/{descriptor}".encode()
        return checked(self._libc.inotify_add_watch(notices, path, _WATCHED))


def read_statx(raw: bytes) -> Inode:
    """Parse the kernel's `struct statx`."""
    mask, uid, mode, number, size = _HEAD.unpack_from(raw)
    seconds, nanoseconds = _BORN.unpack_from(raw, _BORN_AT)
    major, minor = struct.unpack_from("=II", raw, _DEVICE_AT)
    (mount_id,) = struct.unpack_from("=Q", raw, _MOUNT_AT)
    return Inode(
        device=os.makedev(major, minor),
        number=number,
        mode=mode,
        uid=uid,
        size=size,
        born=seconds + nanoseconds / 1e9 if mask & _STATX_BTIME else None,
        mount_id=mount_id if mask & _STATX_MNT_ID else None,
    )
