"""Figures in what the kernel writes of processes and networks. Pure; anything else is None."""

from __future__ import annotations

import re

from lattice.domain.counters import IoCounters
from lattice.domain.kerneltext import LOOPBACK, InterfaceCounts, figure, read_devices

_PARENT, _START = 1, 19
"""Fields of `/proc/PID/stat` behind the name."""
_IO = re.compile(
    rb"rchar: ([0-9]{1,20})\nwchar: ([0-9]{1,20})\nsyscr: [0-9]+\nsyscw: [0-9]+\n"
    rb"read_bytes: ([0-9]{1,20})\nwrite_bytes: ([0-9]{1,20})\n"
)


def sum_of_devices(text: str) -> InterfaceCounts | None:
    """Of all interfaces but the loopback; None: no such file."""
    devices = read_devices(text)
    if devices is None:
        return None
    counted = [each for name, each in devices.items() if name != LOOPBACK]
    received, sent, packets, errors = map(sum, zip((0, 0, 0, 0), *counted, strict=True))
    return received, sent, packets, errors


def parent_and_start(text: str) -> tuple[int, int] | None:
    """Parent and start; the name before them may hold anything."""
    _, closing, rest = text.rpartition(")")
    words = rest.split()
    if not closing or len(words) <= _START:
        return None
    parent, started = figure(words[_PARENT]), figure(words[_START])
    return None if parent is None or started is None else (parent, started)


def io_counters(raw: bytes) -> IoCounters | None:
    """What `/proc/PID/io` says, in the one order the kernel has."""
    found = _IO.match(raw)
    if found is None:
        return None
    read_chars, written_chars, read_bytes, write_bytes = map(int, found.groups())
    return IoCounters(read_bytes, write_bytes, read_chars, written_chars)
