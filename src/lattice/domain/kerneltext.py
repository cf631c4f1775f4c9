"""Parses figures in kernel files, and the kernel's table of network interfaces. Pure.

The root helper uses it for networks of jobs, probes for the node's. A figure is digits and nothing
else: blanks, signs, `NaN` and texts are none.
"""

from __future__ import annotations

from typing import TypeAlias

LOOPBACK = "lo"
InterfaceCounts: TypeAlias = tuple[int, int, int, int]
"""Received bytes, sent bytes, packets and errors, both directions."""
_LONGEST_FIGURE = 20
_FIGURES = 16
"""In a line of `net/dev`, eight for each direction: bytes, packets, errors, and others."""


def figure(text: str | None) -> int | None:
    """The number; None for anything else. Blanks around it are allowed."""
    if text is None:
        return None
    text = text.strip()
    fits = text.isascii() and text.isdigit() and len(text) <= _LONGEST_FIGURE
    return int(text) if fits else None


def read_devices(text: str | None) -> dict[str, InterfaceCounts] | None:
    """`net/dev` by interface; None if the text is not in the kernel's format."""
    found: dict[str, InterfaceCounts] = {}
    for line in (text or "").split("\n")[2:]:
        if not line:
            continue
        name, colon, rest = line.rpartition(":")
        columns = [figure(each) for each in rest.split()]
        counts = [each for each in columns if each is not None]
        if not colon or len(counts) != len(columns) or len(counts) != _FIGURES:
            return None
        found[name.strip()] = (counts[0], counts[8], counts[1] + counts[9], counts[2] + counts[10])
    return found or None
