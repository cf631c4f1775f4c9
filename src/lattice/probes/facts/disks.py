"""The counters of a node's disks and partitions, from `/proc/diskstats`.

They begin with the node's boot and are the whole node's: the kernel has none by job there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice.domain.kerneltext import figure

_SECTOR_BYTES = 512
"""In this file, whatever the disk has."""
_NAME = re.compile(r"[A-Za-z0-9!_.-]{1,32}", re.ASCII)
_MOST_DISKS = 4096
_LEAST_FIELDS = 13
_READS, _SECTORS_READ, _MS_READING = 0, 2, 3
_WRITES, _SECTORS_WRITTEN, _MS_WRITING, _MS_BUSY = 4, 6, 7, 9
"""Indexes after the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCounts:
    """Since the boot. An operation's time is from its entry into the queue to its end."""

    name: str
    read_bytes: float
    write_bytes: float
    operations: float
    spent_s: float
    busy_s: float


def read_diskstats(text: str) -> dict[str, DiskCounts]:
    """By device, as `mountinfo` has it: `259:1`. A line that is none is left out."""
    found: dict[str, DiskCounts] = {}
    for line in text.split("\n")[:_MOST_DISKS]:
        fields = line.split()
        if len(fields) < _LEAST_FIELDS or not _NAME.fullmatch(fields[2]):
            continue
        numbers = [figure(each) for each in (*fields[:2], *fields[3:13])]
        known = [each for each in numbers if each is not None]
        if len(known) < len(numbers):
            continue
        major, minor, *counts = known
        found[f"{major}:{minor}"] = DiskCounts(
            name=fields[2],
            read_bytes=float(counts[_SECTORS_READ] * _SECTOR_BYTES),
            write_bytes=float(counts[_SECTORS_WRITTEN] * _SECTOR_BYTES),
            operations=float(counts[_READS] + counts[_WRITES]),
            spent_s=(counts[_MS_READING] + counts[_MS_WRITING]) / 1000,
            busy_s=counts[_MS_BUSY] / 1000,
        )
    return found
