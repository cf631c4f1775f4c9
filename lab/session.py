"""What a person of the lab does: commands in the control room with her login environment."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from lab.addresses import SERVER_ADDRESSES, SERVER_REST_PORT
from lab.layout import Layout
from lab.other_python import LAB_PYTHON
from lab.room import Room
from lab.slurm_config import SlurmFiles

API_URL = ",".join(f"https://{address}:{SERVER_REST_PORT}" for address in SERVER_ADDRESSES)
"""Both replicas, whether or not the second one is up: a client asks the next when one is gone."""


class Sessions:
    """Runs commands as a person: her home, her groups, lattice and Slurm on her PATH."""

    def __init__(self, layout: Layout, room: Room) -> None:
        self._layout = layout
        self._room = room

    def environment(self, user: str) -> dict[str, str]:
        programs = LAB_PYTHON.parent
        return {
            "HOME": f"/home/{user}",
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/bash",
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
            "LATTICE_API_URL": API_URL,
            "LATTICE_CA": str(self._layout.certificates / "ca.crt"),
            "LATTICE_MUNGE_SOCKET": str(SlurmFiles(self._layout.state).munge_socket),
        }

    def run(
        self,
        user: str,
        argv: Sequence[str],
        *,
        input: str | None = None,  # noqa: A002  as subprocess calls it
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        return self._room.run(
            argv,
            user=user,
            cwd=f"/home/{user}",
            env={**self.environment(user), **(env or {})},
            input=input,
            timeout_s=timeout_s,
            check=check,
        )

    def popen(
        self,
        user: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        return self._room.popen(
            argv,
            user=user,
            cwd=f"/home/{user}",
            env={**self.environment(user), **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    def argv(self, user: str, argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """The command line and environment, for a caller that becomes it with exec."""
        environment = {**self._room.environment, **self.environment(user)}
        return self._room.argv(argv, user=user, cwd=f"/home/{user}"), environment
