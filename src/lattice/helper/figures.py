"""Figures in what the kernel writes of processes and networks. Pure; anything else is None."""

from __future__ import annotations

import re

from lattice.domain.counters import IoCounters

_LONGEST_FIGURE = 20
_PARENT, _START = 1, 19
"""Fields of `/proc/PID/stat` behind the name."""
_LOOPBACK = "lo"
_IO = re.compile(
    rb"rchar: ([0-9]{1,20})\nwchar: ([0-9]{1,20})\nsyscr: [0-9]+\nsyscw: [0-9]+\n"
    rb"read_bytes: ([0-9]{1,20})\nwrite_bytes: ([0-9]{1,20})\n"
)


def sum_of_devices(text: str) -> tuple[int, int, int, int] | None:
    """Received bytes, sent bytes, packets and errors of all but the loopback; None: no such file.

    Behind the name are eight figures for each way: bytes, packets, errors, and others.
    """
    lines = text.splitlines()[2:]
    total = [0, 0, 0, 0]
    for line in lines:
        name, colon, rest = line.partition(":")
        words = [figure(each) for each in rest.split()]
        figures = [each for each in words if each is not None]
        if not colon or len(figures) != len(words) or len(figures) < 11:
            return None
        if name.strip() == _LOOPBACK:
            continue
        total[0] += figures[0]
        total[1] += figures[8]
        total[2] += figures[1] + figures[9]
        total[3] += figures[2] + figures[10]
    return (total[0], total[1], total[2], total[3]) if lines else None


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


def figure(text: str) -> int | None:
    fits = text.isascii() and text.isdigit() and len(text) <= _LONGEST_FIGURE
    return int(text) if fits else None
