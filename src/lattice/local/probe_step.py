"""A step inside the caller's own job that measures it: `srun --overlap`, one task on each node.

It starts with the first question and stays while questions come. A question is a line on its
input. Slurm lets only the job's owner start a step, and the step ends with this process, because
its input ends.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.loglabels import rank_of
from lattice.local.probe_script import SCRIPT, ProbeSample

_LABEL = re.compile(r"^ *[0-9]+: ")
_READ_BYTES = 256 * 1024
_LONGEST_LINE = 64 * 1024
_EXCERPT_BYTES = 2000
_END_S = 2.0
_OTHERS_S = 3.0
"""How long to wait for the other nodes after the last one that answered."""
_PASSED_ON = ("PATH", "SLURM_CONF", "HOME")
"""A caller inside another job has variables that would change what srun does."""


def step_command(allocation: Allocation, nodes: Sequence[str]) -> list[str]:
    """The command line of the step."""
    count = str(len(nodes))
    return [
        "srun",
        f"--jobid={allocation.job_id}",
        "--overlap",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        "--mpi=none",
        "--cpu-bind=none",
        "--job-name=lattice-top",
        "--label",
        "--quiet",
        "/bin/sh",
        "-c",
        SCRIPT,
        "lattice-top",
        "0" if allocation.gpus == 0 else "1",
    ]


class ProbeStep:
    """A running step and what it printed. Use `close` when it is not needed any more."""

    def __init__(self, command: Sequence[str], nodes: Sequence[str], clock: Clock) -> None:
        """Raises `Unavailable` if srun can't be run."""
        self._clock = clock
        self._nodes = tuple(nodes)
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115 - lives as long as the step
        self._names: dict[int, str] = {}
        """The node of each task."""
        self._open: dict[int, ProbeSample] = {}
        self._rest = b""
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={"LC_ALL": "C", **environment},
                bufsize=0,
                # A Ctrl-C in the terminal is for this process.
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(
                f"srun can't be run: {error.strerror}",
                hint="Install Slurm's client commands on this machine.",
            ) from None

    @property
    def is_running(self) -> bool:
        """False once srun has ended."""
        return self._process.poll() is None

    @property
    def error(self) -> str:
        """The beginning of what srun said about a failure."""
        self._errors.seek(0)
        text = self._errors.read(_EXCERPT_BYTES).decode("utf-8", "replace")
        lines = [_LABEL.sub("", each).strip() for each in text.splitlines()]
        return "; ".join([each for each in lines if each][:3])

    def ask(self, within_s: float) -> dict[str, ProbeSample]:
        """A sample of each node that answers in time. Samples that came too late are dropped."""
        until = self._clock.monotonic() + within_s
        found: dict[str, ProbeSample] = {}
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")
        while len(found) < len(self._nodes):
            left_s = until - self._clock.monotonic()
            if left_s <= 0 or not self._read(left_s, found):
                break
            if found:
                # One that has started late or not at all holds up nobody.
                until = min(until, self._clock.monotonic() + _OTHERS_S)
        return found

    def _read(self, within_s: float, found: dict[str, ProbeSample]) -> bool:
        """Take what is printed next; False if nothing comes any more, or not in time."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], within_s)[0]:
            return False
        text = os.read(descriptor, _READ_BYTES)
        *lines, self._rest = (self._rest + text).split(b"\n")
        self._rest = self._rest[:_LONGEST_LINE]
        for line in lines:
            self._take(line, found)
        return bool(text)

    def _take(self, line: bytes, found: dict[str, ProbeSample]) -> None:
        task = rank_of(line)
        if task is None:
            return
        text = line.partition(b": ")[2].decode("ascii", "replace")
        name, _, rest = text.partition(" ")
        if name == "node":
            self._names[task] = rest
        elif name == "begin":
            self._open[task] = ProbeSample()
        elif name == "end":
            sample = self._open.pop(task, None)
            node = self._names.get(task, "")
            if sample is not None and node in self._nodes:
                found[node] = sample
        elif task in self._open:
            self._open[task].add(text)

    def close(self) -> None:
        """End the step by ending its input, and srun if that does not help."""
        process = self._process
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            # It passes the signal on to the step, and to nothing else of the job.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_END_S)
        assert process.stdout is not None
        process.stdout.close()
        self._errors.close()
