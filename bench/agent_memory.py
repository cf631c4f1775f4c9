"""The memory of some processes together, counted in three ways."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MIB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PRESENT, _FRAME = 1 << 63, (1 << 55) - 1


class Memory(NamedTuple):
    """In MiB."""

    resident: float
    """Page frames, each counted once, however many of the processes share it."""
    pss: float
    """The same, divided among all processes of the machine that share it."""
    uss: float
    """Only what no other process has."""
    processes: int


def memory_of(pids: Sequence[int]) -> Memory:
    """Of those of these processes that still run; page frames need root."""
    frames: set[int] = set()
    rows: list[str] = []
    count = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            found = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            frames |= _frames(pid)
            rows += found
            count += 1
    assert frames != {0}, "only root sees page frames"
    return Memory(
        resident=len(frames) * _PAGE / _MIB,
        pss=sum_kb(rows, "Pss") * 1024 / _MIB,
        uss=sum_kb(rows, "Private_Clean", "Private_Dirty") * 1024 / _MIB,
        processes=count,
    )


def sum_kb(rows: Iterable[str], *names: str) -> int:
    """The sum of these fields, in rows as `smaps_rollup` has them."""
    fields = (row.split() for row in rows)
    return sum(int(each[1]) for each in fields if each[0].rstrip(":") in names)


def _frames(pid: int) -> set[int]:
    """The page frames that a process has."""
    found: set[int] = set()
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    pages = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
    try:
        for line in lines:
            begin, end = (int(each, 16) for each in line.split(None, 1)[0].split("-"))
            if begin >= 1 << 63:
                continue  # the kernel's own page, which is there for everyone
            table = os.pread(pages, (end - begin) // _PAGE * 8, begin // _PAGE * 8)
            entries = memoryview(table).cast("Q")
            found.update(each & _FRAME for each in entries if each & _PRESENT)
    finally:
        os.close(pages)
    return found
