"""Old output as people get it: `lattice logs` of a range of time, through a server of its own.

    python -m bench.logs_history_served FOLDER ENDPOINT BEGAN

The server is another process on the same store: the code of a server with its listeners and TLS.
The folder gets its authority.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import Figure, measured, paired, say
from bench.logs_history_site import JOB, OWNER, Site, s3_place
from bench.measuring import Part, end_with_the_first, family_processor_s, quiet
from bench.simulated import PEOPLE_CA, people_served, run_as_server
from tests.fakes.server import composed, token

_READ = 1024 * 1024
_STARTED_WITHIN_S = 60.0


async def serve(folder: Path, endpoint: str, began: float) -> None:
    """Until the process that started it ends."""
    site = Site(s3_place(folder, endpoint), datetime.fromtimestamp(began, UTC))
    faces = composed(site.scheduler, objects=site.objects)
    async with people_served(faces, folder) as url:
        say({"url": url})
        await asyncio.Event().wait()


class ServedRange:
    """A server, and the processor time of it and of the commands that asked it."""

    def __init__(self, server: Part, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self.server_s: list[float] = []
        self.client_s: list[float] = []

    async def read(self, since_ms: int, until_ms: int) -> int:
        """How many bytes `lattice logs` prints of a range of time."""
        pid = self._server.process.pid
        server_s, client_s = family_processor_s(pid), _ended_children_s()
        size = self._printed(since_ms, until_ms)
        self.client_s.append(_ended_children_s() - client_s)
        self.server_s.append(family_processor_s(pid) - server_s)
        return size

    def figures(
        self, name: str, wall: tuple[list[float], list[float]], bare: list[float]
    ) -> list[Figure]:
        """`wall` has the times of the command and of a bare read, `bare` the latter's processor."""
        del self.server_s[0], self.client_s[0]  # the first warms
        return [
            paired(f"{name}, against a bare ranged read", "s", *wall),
            paired(
                f"{name}, server's processor time, against a bare one", "s", self.server_s, bare
            ),
            measured(f"{name}, client's processor time", "s", self.client_s),
        ]

    def _printed(self, since_ms: int, until_ms: int) -> int:
        program = str(Path(sys.executable).parent / "lattice")
        bounds = ("--since", moment(since_ms), "--until", moment(until_ms))
        argv = [program, "logs", str(JOB), "--prefix", "none", *bounds]
        size = 0
        with subprocess.Popen(argv, env=self._environment(), stdout=subprocess.PIPE) as command:
            assert command.stdout is not None
            while text := os.read(command.stdout.fileno(), _READ):
                size += len(text)
        if command.returncode:
            raise AssertionError(f"lattice logs: exit code {command.returncode}")
        return size

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self._folder),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "LATTICE_API_URL": self._server.last["url"],
            "LATTICE_CA": str(self._folder / PEOPLE_CA),
            "LATTICE_TOKEN": token(OWNER, preferred_username=OWNER),
        }


def moment(time_ms: int) -> str:
    """As `--since` takes it."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _ended_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def served_range(site: Site, folder: Path, endpoint: str) -> Iterator[ServedRange]:
    """While the context lasts."""
    began = str(site.began.timestamp())
    server = Part("bench.logs_history_served", str(folder), endpoint, began)
    try:
        server.until(bool, _STARTED_WITHIN_S)
        yield ServedRange(server, folder)
    finally:
        server.end()


if __name__ == "__main__":
    quiet()
    end_with_the_first()
    run_as_server(serve(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
