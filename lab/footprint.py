"""What a lab has on the machine at a moment, so that "it left nothing" can be compared."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab import addresses
from lab.cgroup import ControlGroup, Hierarchies
from lab.layout import Layout
from lab.sweep import strays

_LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Everything of one lab that lives outside its state folder."""

    processes: frozenset[str]
    mounts: frozenset[str]
    network_namespaces: frozenset[str]
    control_groups: frozenset[str]
    ports: frozenset[int]
    """Ports of the lab that something listens on outside the lab's namespaces."""

    @classmethod
    def of(cls, layout: Layout) -> Footprint:
        hierarchies = Hierarchies.of_host()
        group = ControlGroup(hierarchies, layout.cgroup(), everywhere=True)
        pids = {stray.pid for stray in strays(layout)} | set(group.pids())
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        names = (str(layout.state) + "/", layout.network_prefix + "-")
        return cls(
            processes=frozenset(_describe(pid) for pid in pids),
            mounts=frozenset(line for line in mounts if any(name in line for name in names)),
            network_namespaces=frozenset(
                file.name for file in Path("/run/netns").glob(f"{layout.network_prefix}-*")
            ),
            control_groups=frozenset(
                str(folder)
                for root in hierarchies.all
                for folder in (root / layout.cgroup(), *(root / layout.cgroup()).rglob("*"))
                if folder.is_dir()
            ),
            ports=frozenset(_listening() & _lab_ports()),
        )

    @property
    def empty(self) -> bool:
        return not (
            self.processes
            or self.mounts
            or self.network_namespaces
            or self.control_groups
            or self.ports
        )


def _describe(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return f"{pid} {words.decode(errors='replace').strip()}"
    return str(pid)


def _lab_ports() -> set[int]:
    """Every port that `addresses` names; a port that also is a common one may be someone else's."""
    values: set[int] = set()
    for name, value in vars(addresses).items():
        if name.endswith("_PORT"):
            values.add(value)
        elif name.endswith("_PORTS"):
            values.update(value)
    return values - {addresses.SERVER_REST_PORT}


def _listening() -> set[int]:
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found
