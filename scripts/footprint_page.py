"""Writes the newest result of `just bench footprint` into docs/operate/footprint.md.

python -m scripts.footprint_page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "operate" / "footprint.md"
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"
_WHERE = {
    "server": "each server",
    "gate": "beside each server",
    "agent": "each node",
    "helper": "each node",
}
_PARTS = {
    "lattice": "`lattice`: the command line and the SDK",
    "lattice-server": "`lattice-server`: server and gate",
    "lattice-agent": "`lattice-agent`: agent and helper",
}


def newest() -> Path:
    """The last result, by date."""
    return max(RESULTS.glob("*-bench-footprint.jsonl"))


def tables(result: str, date: str) -> str:
    """Both tables, from the lines of a result."""
    found: dict[str, dict[str, Any]] = {}
    for line in result.splitlines():
        figure = json.loads(line)
        found[figure["name"]] = figure
    rounds = next(iter(found.values()))
    lines = [
        f"Measured on {date}: the median of {rounds['rounds']} rounds of {rounds['seconds']:g} s.",
        "",
        "| process | where | PSS | USS | resident | processor |",
        "|---|---|---|---|---|---|",
    ]
    for name, where in _WHERE.items():
        sizes = (found[f"{name}: {kind} at rest"] for kind in ("pss", "uss", "resident"))
        memory = " | ".join(f"{each['value']:.0f} MiB" for each in sizes)
        percent = found[f"{name}: processor at rest"]["value"]
        lines.append(f"| {name} | {where} | {memory} | {percent:.2f} % of a core |")
    own = found["Lattice itself: on disk"]["value"]
    lines += [
        "",
        f"Lattice itself is {own:.1f} MiB on disk in every part. The libraries of each are:",
        "",
        "| part | libraries | size | which, the largest first, in MiB |",
        "|---|---|---|---|",
    ]
    for name, title in _PARTS.items():
        figure = found[f"{name}: libraries on disk"]
        listed = ", ".join(f"{each} {size:.1f}" for each, size in figure["libraries"].items())
        count = len(figure["libraries"])
        lines.append(f"| {title} | {count} | {figure['value']:.0f} MiB | {listed} |")
    return "\n".join(lines)


def page(before: str) -> str:
    """The page with the tables of the newest result."""
    file = newest()
    head, _, rest = before.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    made = tables(file.read_text(), file.name[: len("2026-01-01")])
    return f"{head}{_BEGIN}\n{made}\n{_END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
