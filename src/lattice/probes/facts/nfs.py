"""The NFS client's counters of each mount, from `/proc/PID/mountstats`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice.domain.kerneltext import figure

# The kernel escapes space, tab, line feed and backslash in a name, and no other character.
_DEVICE = re.compile(r"device [^ ]+ mounted on ([^ ]+)(.*)")
_NFS = re.compile(r" with fstype nfs4? statvers=1\.[0-9]+")
_OPERATION = re.compile(r"\s+([A-Z][A-Z_0-9]{1,40}): ([0-9 ]+)", re.ASCII)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_BYTES = "bytes:"
_LEAST_FIGURES = 8
_OPS, _SENT, _TIMEOUTS, _ROUND_TRIP, _WHOLE = 0, 1, 2, 6, 7
"""Indexes in an operation: requests, transmissions, timeouts, …, times in ms: rtt, execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountCounts:
    """Since the mount. None: not known."""

    read_bytes: float | None = None
    write_bytes: float | None = None
    operations: float | None = None
    latency_s: float | None = None
    retransmits: float | None = None
    timeouts: float | None = None


def read_mountstats(text: str) -> dict[str, MountCounts]:
    """By mount point; of two at one path the last one, which hides the other."""
    found: dict[str, MountCounts] = {}
    path, lines = "", list[str]()
    for line in (*text.split("\n"), "device none"):
        if line.startswith("device "):
            if path:
                found[path] = _counts(lines)
            device = _DEVICE.fullmatch(line)
            path = _plain(device[1]) if device else ""
            if device and not _NFS.fullmatch(device[2]):
                # Another mount at this path hides the earlier one.
                found.pop(path, None)
                path = ""
            lines = []
        elif path:
            lines.append(line)
    return found


def _counts(lines: list[str]) -> MountCounts:
    told = next((each for each in lines if each.strip().startswith(_BYTES)), "")
    transferred = [figure(each) for each in told.replace(_BYTES, "", 1).split()]
    operations = [found for each in lines if (found := _operation(each))]
    # Normal, direct and server bytes, each read and written; the last two went over the network.
    read, written = transferred[4:6] if len(transferred) >= 6 else (None, None)
    if not operations:
        return MountCounts(read_bytes=_real(read), write_bytes=_real(written))
    asked = sum(each[_OPS] for each in operations)
    return MountCounts(
        read_bytes=_real(read),
        write_bytes=_real(written),
        operations=float(asked),
        latency_s=sum(each[_WHOLE] for each in operations) / asked / 1000 if asked else None,
        retransmits=float(sum(max(0, each[_SENT] - each[_OPS]) for each in operations)),
        timeouts=float(sum(each[_TIMEOUTS] for each in operations)),
    )


def _operation(line: str) -> list[int] | None:
    found = _OPERATION.fullmatch(line)
    told = [figure(each) for each in found[2].split()] if found else []
    known = [each for each in told if each is not None]
    return known if len(known) == len(told) >= _LEAST_FIGURES else None


def _real(count: int | None) -> float | None:
    return None if count is None else float(count)


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
