"""Slurm's commands as small programs: they print recordings, and srun runs its command here."""

from __future__ import annotations

import json
from pathlib import Path

RECORDED = Path(__file__).resolve().parents[2] / "fixtures/slurm/commands"

_SRUN = """
while [ "$1" != /bin/sh ]; do shift; done
SLURMD_NODENAME=n1 "$@" | sed -u 's/^/0: /'
"""


class FakeSlurm:
    """A folder for the PATH."""

    def __init__(self, folder: Path, release: str = "26.05") -> None:
        self.folder = folder
        self.release = release
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("squeue", "sacct"):
            self.prints(name, (RECORDED / release / f"{name}.json").read_text())
        self.program("sacctmgr", "echo lab")
        self.job_files("")
        self.program("srun", _SRUN)

    def program(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.folder}/asked\n{script}\n')
        path.chmod(0o755)

    def prints(self, name: str, text: str) -> None:
        (self.folder / f"{name}.out").write_text(text)
        self.program(name, f"cat {self.folder}/{name}.out")

    def fails(self, name: str, words: str) -> None:
        self.program(name, f"echo '{words}' >&2; exit 1")

    def job_files(self, shown: str) -> None:
        """What `scontrol show job` prints; empty: the job is gone."""
        (self.folder / "shown").write_text(shown)
        self.program(
            "scontrol",
            'if [ "$2" = config ]; then echo "ClusterName = lab"; exit; fi\n'
            f"[ -s {self.folder}/shown ] || {{ echo 'Invalid job id specified'; exit 1; }}\n"
            f"cat {self.folder}/shown",
        )

    def edit(self, name: str, /, **changes: object) -> None:
        """Change fields of every recorded job."""
        document = json.loads((RECORDED / self.release / f"{name}.json").read_text())
        for each in document["jobs"]:
            each.update(changes)
        self.prints(name, json.dumps(document))

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()
