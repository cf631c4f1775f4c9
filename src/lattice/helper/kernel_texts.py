"""The kernel's texts about a process.

A text that does not have the kernel's format counts as unknown.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from lattice.domain.kerneltext import figure

_LARGEST_FILE = 16 * 1024
_READ_BYTES = 64 * 1024
_LARGEST_ENVIRONMENT = 256 * 1024
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}", re.ASCII)
_STATES = frozenset("RSDTtZXxKWPI")
_STATE, _PARENT, _USER_TIME, _SYSTEM_TIME, _START = 0, 1, 11, 12, 19
"""Indexes of the fields of `/proc/PID/stat` after the name."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """Times in clock ticks."""

    name: str
    state: str
    parent: int
    cpu: int
    started: int
    """Since the node started."""


def read_stat(text: str) -> ProcessStat | None:
    """Parse `/proc/PID/stat`; the name in it may contain any character."""
    head, closing, rest = text.rpartition(")")
    _, opening, name = head.partition("(")
    fields = rest.split()
    if not (opening and closing) or len(fields) <= _START or fields[_STATE] not in _STATES:
        return None
    numbers = [figure(fields[at]) for at in (_PARENT, _USER_TIME, _SYSTEM_TIME, _START)]
    if any(each is None for each in numbers):
        return None
    parent, user, system, started = (each or 0 for each in numbers)
    return ProcessStat(name, fields[_STATE], parent, user + system, started)


@dataclass(frozen=True, slots=True)
class DescriptorFacts:
    """The fields of `/proc/PID/fdinfo/N`."""

    position: int
    flags: int
    mount_id: int
    inode: int | None
    """None with kernels before 5.14."""

    @property
    def writes(self) -> bool:
        # A descriptor opened with O_PATH has the mode of a reader.
        return self.flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)

    def same_file(self, other: DescriptorFacts) -> bool:
        """Whether only the position differs."""
        return (self.flags, self.mount_id, self.inode) == (
            other.flags,
            other.mount_id,
            other.inode,
        )


def read_descriptor_facts(text: str) -> DescriptorFacts | None:
    """Parse the text; None if it is malformed."""
    fields = status_of(text)
    flags = fields.get("flags", "")
    position, mount_id = figure(fields.get("pos", "")), figure(fields.get("mnt_id", ""))
    if not re.fullmatch(r"[0-7]{1,12}", flags) or position is None or mount_id is None:
        return None
    return DescriptorFacts(position, int(flags, 8), mount_id, figure(fields.get("ino", "")))


def status_of(text: str) -> dict[str, str]:
    """The fields of `/proc/PID/status`; the first of each name counts."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name, value.strip())
    return fields


def read_environment(raw: bytes) -> dict[bytes, bytes]:
    """Its variables; an incomplete last one is left out."""
    parts = raw.split(b"\0")
    pairs = (each.partition(b"=") for each in parts[:-1])
    return {name: value for name, equals, value in pairs if name and equals}


def environment_of(folder: int) -> dict[bytes, bytes] | None:
    """Its environment at its start; None if it can't be read."""
    raw = bytes_of("environ", _LARGEST_ENVIRONMENT, folder)
    return None if raw is None else read_environment(raw)


def text_of(folder: int, name: str, most_bytes: int = _LARGEST_FILE) -> str:
    """The text of a small file below a folder; empty if it can't be read."""
    return (bytes_of(name, most_bytes, folder) or b"").decode(errors="replace")


def bytes_of(path: str, most_bytes: int, folder: int | None = None) -> bytes | None:
    """The first bytes of a file; None if it can't be read, or its process ended meanwhile."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    parts, left = [], most_bytes
    try:
        while left > 0 and (part := os.read(file, min(left, _READ_BYTES))):
            parts.append(part)
            left -= len(part)
    except OSError:
        return None
    finally:
        os.close(file)
    return b"".join(parts)


def waits_in(text: str) -> str:
    """The kernel function in `wchan`; empty if the process runs or the kernel hides it."""
    function = text.strip()
    return function if _FUNCTION.fullmatch(function) else ""
