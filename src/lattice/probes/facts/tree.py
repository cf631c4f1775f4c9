"""Small files of a tree, and numbers in them, for the probes of facts."""

from __future__ import annotations

import os
import re

from lattice.domain.kerneltext import figure
from lattice.probes.reading import read_text

_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,64}", re.ASCII)
MOST_PORTS = 64


def names_in(folder: str) -> list[str]:
    """The plain names in a folder, in order; none where there is no such folder."""
    try:
        found = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    return sorted(name for name in found if _NAME.fullmatch(name))[:MOST_PORTS]


def word(path: str) -> str:
    """What a file of one line says; empty where it says nothing."""
    return (read_text(path, 256) or "").strip()


def number(path: str) -> float | None:
    """The count that a file is; None for anything else."""
    found = figure(read_text(path, 256))
    return None if found is None else float(found)


def total(*counts: float | None) -> float | None:
    """Of those that are known; None if none is."""
    known = [each for each in counts if each is not None]
    return sum(known) if known else None


def carries(*counts: float | None) -> bool:
    """Whether a port was ever used: one without a cable is no link."""
    return any(each for each in counts)
