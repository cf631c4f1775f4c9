"""What every user can read about a process: its parent, its name, its command line."""

from __future__ import annotations

from pathlib import Path

_LARGEST = 4096


def process_look(proc: Path, pid: int) -> tuple[int, str, str] | None:
    """Parent, name and command line (separated by NULs) of a process; None if it is gone."""
    folder = proc / str(pid)
    try:
        with (folder / "stat").open("rb") as file:
            stat = file.read(_LARGEST)
        with (folder / "cmdline").open("rb") as file:
            title = file.read(_LARGEST)
    except OSError:
        return None
    # The name is in brackets and may itself contain brackets.
    name, closing, rest = stat[stat.find(b"(") + 1 :].rpartition(b")")
    fields = rest.split()
    if not closing or len(fields) < 2 or not fields[1].isdigit():
        return None
    return int(fields[1]), _text(name), _text(title.rstrip(b"\0"))


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace").strip()
