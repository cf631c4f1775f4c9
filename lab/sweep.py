"""Removes what a lab left on the machine, whether it was stopped or killed.

Processes are found twice: by the control group they were started in, which they can't leave
unnoticed, and by the marker in their environment, which a process has even in the instant before
it joins. Both name one lab exactly; nothing is ever ended by its name or by a pid alone.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from lab.cgroup import ControlGroup, Hierarchies
from lab.command import LabError, run
from lab.identity import Identity, carrying
from lab.layout import MARKER, Layout
from lab.network import Network

_OCTAL = re.compile(r"\\([0-7]{3})")


def strays(layout: Layout) -> list[Identity]:
    """Processes of this lab by their marker."""
    return list(carrying(MARKER, layout.name))


def mounts_below(folder: Path) -> list[Path]:
    """Mount points at or below a folder, innermost first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [Path(_OCTAL.sub(lambda m: chr(int(m[1], 8)), line.split()[1])) for line in lines]
    return sorted((point for point in points if point.is_relative_to(folder)), reverse=True)


def sweep(layout: Layout, hierarchies: Hierarchies, network: Network) -> None:
    """End every process and remove every namespace, mount and control group of the lab."""
    everything = ControlGroup(hierarchies, layout.cgroup(), everywhere=True)
    if os.getpid() in everything.pids():
        raise LabError(f"this program runs inside lab {layout.name}: leave the lab first")
    everything.kill()
    for stray in strays(layout):
        stray.send(signal.SIGKILL)
        if not stray.wait(5.0):
            raise LabError(f"process {stray.pid} of lab {layout.name} can't be killed")
    everything.remove()
    network.destroy()
    for point in mounts_below(layout.state):
        run(["umount", "--lazy", str(point)])
    if layout.processes.is_dir():
        for record in layout.processes.iterdir():
            record.unlink()
