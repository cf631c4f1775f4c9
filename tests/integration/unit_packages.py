"""Packages with the names of ours that hold units and configuration alone: built in a second."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

INFRA = Path(__file__).resolve().parents[2] / "infra"
UNITS = {
    "lattice-python": (),
    "lattice": (),
    "lattice-server": (
        "server.service",
        "gate.service",
        "slurmrestd.service",
        "slurmrestd-jwt.service",
    ),
    "lattice-agent": ("agent.service", "enrol.service", "helper.service", "helper.socket"),
}
CONFIGURATIONS = {"lattice": "config.yaml", "lattice-agent": "agent.yaml"}


def packages_of_units(folder: Path) -> Path:
    """A folder with the four packages, made by dpkg's own tool."""
    built = folder / "packages"
    built.mkdir(parents=True)
    for name, units in UNITS.items():
        tree = folder / name
        control = tree / "DEBIAN/control"
        control.parent.mkdir(parents=True)
        control.write_text(
            f"Package: {name}\nVersion: 0.1.0\nArchitecture: amd64\n"
            "Maintainer: Lattice <lattice@localhost>\nDescription: for a test\n"
        )
        for unit in units:
            (tree / "usr/lib/systemd/system").mkdir(parents=True, exist_ok=True)
            shutil.copy(INFRA / "systemd" / f"lattice-{unit}", tree / "usr/lib/systemd/system")
        if target := CONFIGURATIONS.get(name):
            (tree / "etc/lattice").mkdir(parents=True)
            shutil.copy(INFRA / "packages" / f"{name}.yaml", tree / "etc/lattice" / target)
            (tree / "DEBIAN/conffiles").write_text(f"/etc/lattice/{target}\n")
        argv = ["dpkg-deb", "--build", tree, built / f"{name}_0.1.0_amd64.deb"]
        subprocess.run(argv, check=True, capture_output=True)
    return built
