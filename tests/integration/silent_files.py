"""A file system that answers its first questions and then no more, as a dead share does.

Run as root: mounts itself on the folder it is given. `half` reads what it is asked and stays
silent, and whoever waits for that can't be killed; `deaf` does not even read.

    python silent_files.py FOLDER deaf|half

`file` is a user's, in namespaces of his own: it stands on a file, lets one process open it for
writing as its standard output, and then reads without a word.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct
import sys

_GETATTR, _OPEN, _INIT = 3, 14, 26
_HEADER = struct.Struct("=IIQQIIII")


def main(folder: str, manner: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    kind = stat.S_IFREG if manner == "file" else stat.S_IFDIR
    options = f"fd={device},rootmode={kind:o},user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    words = (b"silent", folder.encode(), b"fuse", 0, f"{options},allow_other".encode())
    if libc.mount(*words) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    # major, minor, read ahead, flags, background, congestion, largest write, granularity, …
    init = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0)
    _answer(device, _INIT, init)
    if manner == "file":
        if os.fork() == 0:
            os.close(device)
            file = os.open(folder, os.O_WRONLY)
            os.set_inheritable(file, True)  # closing it would be one more question
            os.dup2(file, 1)
            os.execvp("sleep", ["sleep", "300"])
        _answer(device, _OPEN, struct.pack("=QII", 1, 0, 0))
    print("mounted", flush=True)
    while manner != "deaf":
        os.read(device, 1 << 20)
    signal.pause()


def _answer(device: int, wanted: int, told: bytes) -> None:
    """Hear questions until this one came; the file's attributes are all else that is told."""
    attributes = struct.pack("=QII", 0, 0, 0)
    attributes += struct.pack("=QQQQQQIIIIIIIIII", 1, *(0,) * 8, stat.S_IFREG | 0o666, 1, *(0,) * 5)
    while True:
        code, unique = _HEADER.unpack_from(os.read(device, 1 << 20))[1:3]
        body = told if code == wanted else attributes if code == _GETATTR else b""
        os.write(device, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)
        if code == wanted:
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
