"""Reads small files of a tree and the numbers in them, for the probes of facts."""

from __future__ import annotations

import os
import re

from lattice.domain.kerneltext import figure
from lattice.probes.kernel_files import read_text

_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,64}", re.ASCII)
MOST_PORTS = 64


def names_in(folder: str) -> list[str]:
    """The sorted plain names in a folder; empty if there is no such folder."""
    try:
        found = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    return sorted(name for name in found if _NAME.fullmatch(name))[:MOST_PORTS]


def word(path: str) -> str:
    """The text of a one-line file; empty if it can't be read."""
    return (read_text(path, 256) or "").strip()


def number(path: str) -> float | None:
    """The count in a file; None if it has anything else."""
    found = figure(read_text(path, 256))
    return None if found is None else float(found)


def total(*counts: float | None) -> float | None:
    """The sum of the known values; None if there is none."""
    known = [each for each in counts if each is not None]
    return sum(known) if known else None


def carries(*counts: float | None) -> bool:
    """Whether a port was ever used: one without a cable is no link."""
    return any(each for each in counts)
