"""Submitting jobs as a person and waiting for what Slurm says of them."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence

from lab.command import LabError
from lab.room import Room
from lab.session import Sessions

_STATE = re.compile(r"\bJobState=(\S+)")


class Jobs:
    """Jobs of the lab, seen with root's eyes."""

    def __init__(self, room: Room, sessions: Sessions) -> None:
        self._room = room
        self._sessions = sessions

    def submit(
        self, user: str, *options: str, script: str | None = None, wrap: str | None = None
    ) -> int:
        """sbatch as the user, with a script (given on stdin) or a command to wrap."""
        command = ["sbatch", "--parsable", *options]
        if wrap is not None:
            command.append(f"--wrap={wrap}")
        said = self._sessions.run(user, command, input=script, check=True)
        return int(said.stdout.strip().split(";")[0])

    def show(self, job: int | str) -> str:
        """scontrol's lines for the job (one a task of an array), or "" if it knows none."""
        return self._room.run(["scontrol", "-o", "show", "job", str(job)], check=False).stdout

    def states(self, job: int | str) -> list[str]:
        return _STATE.findall(self.show(job))

    def wait_state(
        self, job: int | str, states: str | Collection[str], timeout_s: float = 120.0
    ) -> str:
        """Wait until the job (every task of an array) is in one of the states."""
        wanted = {states} if isinstance(states, str) else set(states)
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self.states(job)
            if seen and wanted.issuperset(seen):
                return seen[0]
            if time.monotonic() > deadline:
                told = self.show(job) or "unknown to slurmctld"
                raise LabError(f"job {job} not {sorted(wanted)} after {timeout_s:g} s: {told}")
            time.sleep(0.05)

    def cancel(self, *jobs: int | str) -> None:
        self._room.run(["scancel", *(str(job) for job in jobs)])

    def cancel_all(self, timeout_s: float = 120.0) -> None:
        """End every job and wait until Slurm is done with all of them."""
        deadline = time.monotonic() + timeout_s
        while left := self._queued():
            self._room.run(["scancel", *left], check=False)
            if time.monotonic() > deadline:
                raise LabError(f"jobs {left} do not end")
            time.sleep(0.1)

    def _queued(self) -> Sequence[str]:
        return self._room.run(["squeue", "-h", "-a", "-o", "%A"]).stdout.split()
