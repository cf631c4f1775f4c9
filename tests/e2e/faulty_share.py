"""Run as root on a node: a FUSE file system with one file, which answers as it is told to.

    python -m tests.e2e.faulty_share FOLDER

A line on its standard input says how from then on: `0` at once, a number so many seconds later,
`never` not at all. When the input ends it goes, and whoever waits for it gets an error. Standard
library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import struct
import sys
import threading

from tests.integration.dead_share import greet

NAME = b"data"
_ROOT, _FILE = 1, 2
_HEADER = struct.Struct("<IIQQIIII")
_ATTRIBUTES = struct.Struct("<6Q10I")
_LOOKUP, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH = 1, 3, 14, 15, 17, 18, 25
_SILENT = frozenset({2, 36, 42})
"""FORGET, INTERRUPT and BATCH_FORGET want no answer."""
_NEVER = "never"
_INPUT = 0
_DIRECT = 1
_DETACHED = 2


class Share:
    """Answers the kernel over an open `/dev/fuse`."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._pace = "0"

    def serve(self) -> None:
        """Until the standard input ends."""
        while True:
            ready, _, _ = select.select([self._device, _INPUT], [], [])
            if _INPUT in ready:
                told = os.read(_INPUT, 1024).decode().split()
                if not told:
                    return
                self._pace = told[-1]
            if self._device in ready:
                self._hear(os.read(self._device, 1 << 20))

    def _hear(self, raw: bytes) -> None:
        _, opcode, unique, node, *_ = _HEADER.unpack_from(raw)
        if opcode in _SILENT or self._pace == _NEVER:
            return
        fault, body = _answer(opcode, node, raw[_HEADER.size :])
        whole = struct.pack("<IiQ", 16 + len(body), -fault, unique) + body
        # Each on its own: one that waits holds up no other.
        later = threading.Timer(float(self._pace), self._say, (whole,))
        later.daemon = True
        later.start()

    def _say(self, whole: bytes) -> None:
        try:
            os.write(self._device, whole)
        except FileNotFoundError:
            return  # who asked has given up


def _answer(opcode: int, node: int, words: bytes) -> tuple[int, bytes]:
    """Nothing is remembered by the kernel, so that all of it is asked again each time."""
    if opcode == _LOOKUP and words.rstrip(b"\0") != NAME:
        return errno.ENOENT, b""
    if opcode == _READ:
        (size,) = struct.unpack_from("<I", words, 16)
        return 0, b"x" * size
    known = {
        _LOOKUP: struct.pack("<QQQQII", _FILE, 0, 0, 0, 0, 0) + _attributes(_FILE),
        _GETATTR: struct.pack("<QII", 0, 0, 0) + _attributes(node),
        _STATFS: struct.pack("<5Q4I6I", 1000, 500, 500, 10, 5, 4096, 255, 4096, *([0] * 7)),
        _OPEN: struct.pack("<QIi", 0, _DIRECT, 0),
        _RELEASE: b"",
        _FLUSH: b"",
    }
    return (0, known[opcode]) if opcode in known else (errno.ENOSYS, b"")


def _attributes(node: int) -> bytes:
    mode, size = (stat.S_IFREG | 0o444, 4096) if node == _FILE else (stat.S_IFDIR | 0o755, 0)
    return _ATTRIBUTES.pack(node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def main(folder: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"share", folder.encode(), b"fuse.share", ctypes.c_ulong(0), options):
        raise OSError(ctypes.get_errno(), "no FUSE here")
    try:
        greet(device)
        print("mounted", flush=True)
        Share(device).serve()
    finally:
        libc.umount2(folder.encode(), _DETACHED)


if __name__ == "__main__":
    main(*sys.argv[1:])
