"""A job that writes lines which prove themselves, and the reader that checks them.

Each line carries its node, writer, number and a checksum of these: whatever is lost, doubled, torn
or out of order shows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from lab.laboratory import Lab

PROGRAM = r"""
import os, sys, time, zlib
writer, count, pause, size = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
node = os.environ.get("SLURMD_NODENAME", "?")
rank = os.environ.get("SLURM_PROCID", "0")
noise = len(sys.argv) > 5
for number in range(count):
    text = os.urandom(size // 2).hex() if noise else "x" * size
    body = f"{node} {writer}.{rank} {number} {text}"
    os.write(1, f"{body} {zlib.crc32(body.encode()):08x}\n".encode())
    if pause: time.sleep(pause)
"""


def script(
    writer: str, count: int, *, pause_s: float = 0.0, size: int = 20, noise: bool = False
) -> str:
    """A command for a job's script. `noise` can't be compressed to less than half."""
    words = f"{writer} {count} {pause_s} {size}" + (" noise" if noise else "")
    return f"/usr/bin/python3 -c {_quoted(PROGRAM)} {words}"


class Gate:
    """Where a job of alice's waits until it may go on."""

    def __init__(self, lab: Lab, name: str = "go-on") -> None:
        self.wait = f"while ! [ -e ~/{name} ]; do sleep 0.2; done"
        self._file = lab.layout.home / "alice" / name
        self._file.unlink(missing_ok=True)

    def open(self) -> None:
        self._file.touch()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def numbers(lines: Iterable[str], writer: str) -> list[int]:
    """The numbers of a writer's lines, in the order they stand; a torn line fails here."""
    found = []
    for line in lines:
        body, _, checksum = line.rstrip("\n").rpartition(" ")
        words = body.split(" ")
        if len(words) < 4 or words[1].partition(".")[0] != writer:
            continue
        assert f"{zlib.crc32(body.encode()):08x}" == checksum, line
        found.append(int(words[2]))
    return found
