"""Jobs that write a marker, and the search for it in files and in memory."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from lab.identity import children
from lab.laboratory import Lab
from lab.memory import places_of
from lattice.base.zstd import zstd

WAITS = "while ! [ -e ~/go-on-$SLURM_JOB_ID ]; do sleep 0.2; done"
_ZSTD = b"\x28\xb5\x2f\xfd"
_MOST_UNPACKED = 4 * 1024 * 1024
_FOLDERS = (Path("/tmp"), Path("/var/tmp"))


class MarkedJob:
    """A job of alice's that writes its marker 400 times. The script has only halves of it."""

    def __init__(self, lab: Lab, *options: str) -> None:
        one, two = secrets.token_hex(8), secrets.token_hex(8)
        self.marker = f"{one}-{two}"
        lines = f"a={one}; b={two}; for i in $(seq 200); do echo line $i of $a-$b; done"
        self.id = lab.sbatch("alice", *options, wrap=f"{lines}; {WAITS}; {lines}")
        self.file = f"slurm-{self.id}.out"


def unpacked(content: bytes) -> bytes:
    """Every zstd frame in it, as far as it can be unpacked."""
    found, at = [], content.find(_ZSTD)
    while at >= 0:
        try:
            unpacking = zstd.ZstdDecompressor()
            found.append(unpacking.decompress(content[at : at + _MOST_UNPACKED], _MOST_UNPACKED))
        except zstd.ZstdError:
            pass
        at = content.find(_ZSTD, at + 1)
    return b"".join(found)


def files_with(lab: Lab, markers: Iterable[bytes], *, except_for: Iterable[str] = ()) -> list[str]:
    """The files of the lab, and those in /tmp, that have a marker, packed or not.

    `except_for` are names of files that may have it.
    """
    wanted, left_out, found = tuple(markers), frozenset(except_for), []
    for folder in (lab.layout.state, *_FOLDERS):
        for file in sorted(folder.rglob("*")):
            try:
                if file.is_symlink() or not file.is_file() or file.name in left_out:
                    continue
                content = file.read_bytes()
            except OSError:
                continue
            content += unpacked(content)
            if any(each in content for each in wanted):
                found.append(str(file.relative_to(folder)))
    return found


def memories_with(lab: Lab, marker: bytes, nodes: Iterable[str]) -> list[str]:
    """The processes of servers, agents and helpers that have the marker in their memory."""
    processes = [(each.name, each.process.pid) for each in lab.servers]
    for name in nodes:
        agent = lab.node(name).agent
        processes += [(agent.name, agent.process.pid)]
        processes += [(agent.helper.name, agent.helper.process.pid)]
    found = []
    for name, first in processes:
        for pid in _descendants(first):
            places = places_of(pid, marker)
            found += [f"{name} {pid} {each.mapping} {each.around!r}" for each in places]
    return found


def _descendants(pid: int) -> Iterator[int]:
    yield pid
    for child in children(pid):
        yield from _descendants(child)
