"""Run as root: a FUSE file system that has stopped answering, and a program that sees it.

    dead_share.py FOLDER PROGRAM [WORDS]

It is mounted in a mount namespace of its own and goes when the program ends. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys

_NEW_MOUNTS = 0x20000
_PRIVATE = 0x44000  # MS_REC | MS_PRIVATE
_INIT = 26
_HEADER = struct.Struct("<IIQQIIII")


def main(folder: str, *program: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) or libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None):
        raise OSError(ctypes.get_errno(), "no mount namespace")
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"dead", folder.encode(), b"fuse.dead", ctypes.c_ulong(0), options):
        raise OSError(ctypes.get_errno(), "no FUSE here")
    program_pid = os.getpid()
    if os.fork() == 0:
        greet(device)
        while os.getppid() == program_pid:
            if select.select([device], [], [], 0.1)[0]:
                os.read(device, 1 << 20)  # heard, and never answered
        os._exit(0)
    os.close(device)
    os.execvp(program[0], program)


def greet(device: int) -> None:
    """The one thing the kernel waits for before it lets anybody in."""
    raw = os.read(device, 1 << 20)
    _, opcode, unique, *_ = _HEADER.unpack_from(raw)
    assert opcode == _INIT
    body = struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 12, 9, 4096, 1, 0, 0, *([0] * 8))
    os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)


if __name__ == "__main__":
    main(*sys.argv[1:])
