"""Searches the memory of a running process for a marker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ (\S+) \d+ *(.*)")
_CHUNK_BYTES = 8 * 1024 * 1024
_AROUND_BYTES = 24


@dataclass(frozen=True, slots=True)
class Found:
    """Where a marker stands."""

    mapping: str
    address: int
    around: bytes


def places_of(pid: int, marker: bytes) -> list[Found]:
    """Every occurrence of the marker in what the process can read, its stacks included."""
    return [
        Found(name, address, around)
        for start, end, name in _mappings(pid)
        for address, around in _search(pid, start, end, marker)
    ]


def _mappings(pid: int) -> Iterator[tuple[int, int, str]]:
    for line in (_PROC / str(pid) / "maps").read_text().splitlines():
        start, end, rights, device, name = _MAPPING.fullmatch(line).groups()  # type: ignore[union-attr]
        # Mapped devices may have effects when they are read; [vvar] and [vsyscall] can't be.
        if rights.startswith("r") and not name.startswith(("/dev/", "[v")):
            yield int(start, 16), int(end, 16), name or f"anonymous {device}"


def _search(pid: int, start: int, end: int, marker: bytes) -> Iterator[tuple[int, bytes]]:
    with (_PROC / str(pid) / "mem").open("rb", buffering=0) as memory:
        kept = b""
        for base in range(start, end, _CHUNK_BYTES):
            part = b""
            # It may have been unmapped meanwhile.
            with suppress(OSError):
                memory.seek(base)
                part = memory.read(min(_CHUNK_BYTES, end - base))
            text, first = kept + part, base - len(kept)
            at = text.find(marker)
            while at >= 0:
                yield first + at, text[max(0, at - _AROUND_BYTES) : at + len(marker) + 8]
                at = text.find(marker, at + 1)
            kept = text[-(len(marker) - 1) :] if part else b""
