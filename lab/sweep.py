"""Removes what a lab left on the machine, whether it was stopped or killed.

Processes are found twice: by the control group they were started in, which they can't leave
unnoticed, and by the marker in their environment, which a process has even in the instant before
it joins. Both name one lab exactly; nothing is ever ended by its name or by a pid alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lab.cgroup import ControlGroup, Hierarchies
from lab.command import LabError, run
from lab.identity import Identity, carrying
from lab.layout import LABS_CGROUP, MARKER, Layout
from lab.network import Network
from lab.process import recorded
from lab.survivor import Survivor
from lab.teardown import PATIENCE_S, end_all

_OCTAL = re.compile(r"\\([0-7]{3})")


def strays(layout: Layout) -> list[Identity]:
    """Processes of this lab by their marker, outside the control groups of labs."""
    return list(carrying(MARKER, layout.name, not_below=LABS_CGROUP))


def _records(layout: Layout) -> list[Path]:
    return list(layout.processes.iterdir()) if layout.processes.is_dir() else []


def mounts_below(folder: Path) -> list[Path]:
    """Mount points at or below a folder, innermost first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [Path(_OCTAL.sub(lambda m: chr(int(m[1], 8)), line.split()[1])) for line in lines]
    return sorted((point for point in points if point.is_relative_to(folder)), reverse=True)


def sweep(
    layout: Layout,
    hierarchies: Hierarchies,
    network: Network,
    *,
    patience_s: float = PATIENCE_S,
) -> list[Survivor]:
    """End every process and remove every namespace, mount and control group of the lab.

    Return processes that can't be ended. All but their control groups is removed all the same,
    and these are no hindrance for the next lab of the name.
    """
    everything = ControlGroup(hierarchies, layout.cgroup(), everywhere=True)
    if os.getpid() in everything.pids():
        raise LabError(f"this program runs inside lab {layout.name}: leave the lab first")
    known = [recorded(record) for record in _records(layout)]
    survivors = end_all(
        everything, lambda: [*filter(None, known), *strays(layout)], patience_s=patience_s
    )
    if survivors:
        everything.try_remove()
    else:
        everything.remove()
    network.destroy()
    for record in _records(layout):
        record.unlink()
    for point in mounts_below(layout.state):
        run(["umount", "--lazy", str(point)], check=False)  # gone with one above it, maybe
    if left := mounts_below(layout.state):
        raise LabError(f"can't unmount {', '.join(map(str, left))}")
    return survivors
