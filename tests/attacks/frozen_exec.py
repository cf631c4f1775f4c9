"""Run as an ordinary user in a job: a process that holds whoever reads it in `/proc`.

    frozen_exec.py SECONDS [FILE]

It mounts a FUSE file system of its own in a user namespace of its own, opens a file there, has the
file closed on exec, and executes a program. The kernel asks the server to flush the file in the
midst of that, with the lock held that readers of the process need. The server never answers.

`held PID` on standard output says that it has begun. It is over after so many seconds, once FILE
exists, or when the server is killed. Whatever looks for it in `/proc` hangs, Slurm included: end it
by FILE or by its process group. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x20000
_REQUEST = struct.Struct("<IIQQIIII")
_ANSWER = struct.Struct("<IiQ")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _RELEASE, _FLUSH = 1, 2, 3, 14, 18, 25
_INIT, _INTERRUPT, _BATCH_FORGET = 26, 36, 42
_UNANSWERED = {_FORGET, _BATCH_FORGET, _INTERRUPT, _FLUSH}
_ROOT, _FILE = 1, 2
_NOT_KNOWN = -38  # ENOSYS


class Term:
    """How long it lasts."""

    def __init__(self, seconds: float, file: str | None) -> None:
        self._until = time.monotonic() + seconds
        self._file = file

    def is_over(self) -> bool:
        over_by_file = self._file is not None and Path(self._file).exists()
        return over_by_file or time.monotonic() >= self._until


def main(seconds: float, file: str | None = None) -> None:
    term = Term(seconds, file)
    ours, theirs = socket.socketpair()
    folder = tempfile.mkdtemp(prefix="frozen-exec-")
    if os.fork() == 0:
        ours.close()
        bring_file(folder, theirs, term)
        os._exit(0)
    theirs.close()
    _, files, _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    os.set_inheritable(files[0], False)
    os.execv("/bin/sleep", ["sleep", str(int(seconds) + 5)])


def bring_file(folder: str, asker: socket.socket, term: Term) -> None:
    """Mount, and pass an open file of the mount to a process outside of it."""
    device = mounted(folder)
    if os.fork() == 0:
        asker.close()
        serve(device, term)
        os._exit(0)
    os.close(device)
    file = os.open(f"{folder}/file", os.O_RDWR)
    socket.send_fds(asker, [b"x"], [file])
    # A copy in this process would be flushed as well when it ends.
    while not term.is_over():
        time.sleep(0.2)


def mounted(folder: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "no user namespace")
    for name, line in (
        ("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1"),
    ):  # fmt: skip
        Path(f"/proc/self/{name}").write_text(line)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"frozen", folder.encode(), b"fuse", ctypes.c_ulong(0), options):
        raise OSError(ctypes.get_errno(), "no FUSE here")
    return device


def serve(device: int, term: Term) -> None:
    """Everything but the flush of a file."""
    while not term.is_over():
        if not select.select([device], [], [], 0.2)[0]:
            continue
        _, operation, unique, node, _, _, pid, _ = _REQUEST.unpack_from(os.read(device, 1 << 20))
        if operation == _FLUSH:
            os.write(1, f"held {pid}\n".encode())
        if operation not in _UNANSWERED:
            body = answer(operation, node)
            error = _NOT_KNOWN if body is None else 0
            head = _ANSWER.pack(_ANSWER.size + len(body or b""), error, unique)
            os.write(device, head + (body or b""))


def answer(operation: int, node: int) -> bytes | None:
    if operation == _INIT:
        return struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 12, 9, 4096, 1, 0, 0, *([0] * 8))
    if operation == _LOOKUP:
        return struct.pack("<QQQQII", _FILE, 0, 3600, 3600, 0, 0) + attributes(_FILE)
    if operation == _GETATTR:
        return struct.pack("<QII", 3600, 0, 0) + attributes(node)
    if operation == _OPEN:
        return struct.pack("<QII", 1, 0, 0)
    return b"" if operation == _RELEASE else None


def attributes(node: int) -> bytes:
    mode = 0o40777 if node == _ROOT else 0o100666
    return struct.pack("<6Q10I", node, *([0] * 8), mode, 1, 0, 0, 0, 4096, 0)


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
