"""What each package contains beside its Python environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scripts.packaging.command import INFRA, ROOT

PACKAGES = INFRA / "packages"


@dataclass(frozen=True, slots=True)
class Program:
    """A command of the environment; `link` makes it a command of the machine."""

    name: str
    entry: str
    link: str | None = None
    manual: int = 8


@dataclass(frozen=True, slots=True)
class Part:
    """One package."""

    name: str
    folder: str
    extras: tuple[str, ...]
    summary: str
    programs: tuple[Program, ...]
    units: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    """Of the folder `config`."""
    more: tuple[str, ...] = ()
    """Distributions beside Lattice's own dependencies."""

    @property
    def home(self) -> str:
        """Where its environment is."""
        return f"opt/lattice/{self.folder}"

    def file(self, kind: str) -> Path | None:
        """A file of its own in `infra/packages`, if there is one of this kind."""
        found = PACKAGES / f"{self.name}.{kind}"
        return found if found.exists() else None


_HELPER = ("lattice-helper", "lattice.helper.main:main")
PARTS = (
    Part(
        "lattice",
        "cli",
        ("tui",),
        "Command line of Lattice: see into your job on a GPU or HPC cluster",
        (Program("lattice", "lattice.cli.main:main", "/usr/bin/lattice", 1),),
    ),
    Part(
        "lattice-server",
        "server",
        ("server",),
        "Server of Lattice, which stands beside slurmrestd",
        (
            Program("lattice-server", "lattice.server.start:main", "/usr/sbin/lattice-server"),
            # The gate. The helper of a node may be on the same machine, and has the manual's page.
            Program(*_HELPER),
        ),
        (
            "lattice-server.service",
            "lattice-gate.service",
            "lattice-slurmrestd.service",
            "lattice-slurmrestd-jwt.service",
        ),
        ("minimal.yaml", "production.yaml"),
    ),
    Part(
        "lattice-agent",
        "agent",
        ("agent", "nvidia"),
        "Agent of Lattice for compute nodes, with its helper",
        (
            Program("lattice-agent", "lattice.agent.start:main", "/usr/sbin/lattice-agent"),
            Program(*_HELPER, "/usr/sbin/lattice-helper"),
        ),
        (
            "lattice-agent.service",
            "lattice-enrol.service",
            "lattice-helper.service",
            "lattice-helper.socket",
        ),
        ("agent.yaml",),
        ("py-spy",),
    ),
)


def configuration(part: Part) -> tuple[Path, str] | None:
    """The file below /etc that a person changes, and its name there."""
    if (file := part.file("yaml")) is None:
        return None
    name = "config" if part.folder == "cli" else part.folder
    return file, f"/etc/lattice/{name}.yaml"


def shared_files() -> dict[str, tuple[Path, ...]]:
    """What Grafana and Prometheus load, by folder."""
    return {name: tuple(sorted((INFRA / name).iterdir())) for name in ("alerts", "grafana")}


def deploy_scripts() -> tuple[Path, ...]:
    """What sets up etcd, nodes and images; `validate.sh` needs a checkout."""
    found = (ROOT / "scripts" / "deploy").glob("*.sh")
    return tuple(sorted(each for each in found if each.name != "validate.sh"))


LICENCE = ROOT / "LICENSE"
