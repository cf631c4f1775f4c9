"""Runs pytest in a Python of another version, in the root that has it.

python -m scripts.in_other_python 3.14 report.xml -m "not lab" tests/unit
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from lab.laboratory import Lab
from lab.other_python import RELEASES, OtherPython

_CHECKOUT = Path(__file__).resolve().parents[1]


def main(version: str, report: str, *words: str) -> int:
    python = OtherPython(version)
    python.ensure()
    with Lab("python", parts=(), slurm=RELEASES[version]) as lab:
        room = lab.control.room
        there = lab.layout.state / "report.xml"
        argv = [str(python.executable), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        argv += [f"--junitxml={there}", *words]
        environment = {**room.environment, "PYTHONPYCACHEPREFIX": "/tmp/pycache"}
        ended = subprocess.run(
            room.argv(argv, cwd=str(_CHECKOUT)), env=environment, check=False
        ).returncode
        if there.exists():
            shutil.move(there, report)
        return ended


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
