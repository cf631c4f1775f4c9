"""Where one lab keeps what: its folder, its network names, its marker.

Two labs share a machine because every name here derives from the lab's own name. This module
only computes names; it creates nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lab.command import LabError

DEFAULT_NAME = "default"
MARKER = "LATTICE_LAB"
"""Environment variable that every process of a lab carries, holding the lab's name."""

LABS_CGROUP = "lattice-lab"
"""The control group that holds those of every lab."""
_NAME = re.compile(r"[a-z][a-z0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders and names of one lab."""

    name: str = DEFAULT_NAME
    base: Path = Path("/var/lib")
    """Never below /tmp: Slurm's job_container/tmpfs mounts over /tmp and then can't find it."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LabError(f"a lab's name is 1 to 16 lower-case letters and digits: {self.name!r}")

    @property
    def state(self) -> Path:
        suffix = "" if self.name == DEFAULT_NAME else f"-{self.name}"
        return self.base / f"lattice-lab{suffix}"

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def log(self) -> Path:
        return self.state / "log"

    @property
    def processes(self) -> Path:
        return self.state / "processes"

    @property
    def home(self) -> Path:
        return self.state / "home"

    @property
    def certificates(self) -> Path:
        return self.state / "certificates"

    @property
    def hosts_file(self) -> Path:
        return self.etc / "hosts"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def lock_file(self) -> Path:
        return Path("/run/lock") / f"lattice-lab-{self.name}.lock"

    @property
    def network_prefix(self) -> str:
        return f"lattice-lab-{self.name}"

    def network_namespace(self, unit: str) -> str:
        """The name of a unit's network namespace ("control", or a node)."""
        return f"{self.network_prefix}-{unit}"

    def cgroup(self, unit: str = "") -> str:
        """The path of a unit's control group below each hierarchy's root."""
        return f"{LABS_CGROUP}/{self.name}/{unit}".rstrip("/")

    def make_folders(self) -> None:
        """Create the folders every part relies on, readable by the lab's users."""
        for folder in (self.state, self.etc, self.log, self.processes, self.home):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
