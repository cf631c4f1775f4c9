"""Jobs and viewers of the live benches: what a job's process writes, and who reads it when."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.laboratory import Lab

OWNER = "alice"
NODE = "n1"

TICKER = """
import os, time
while True:
    os.write(1, b"%d a line as jobs write them, of some length and no meaning\\n" % time.time_ns())
    time.sleep(0.02)
"""
"""A line each 20 ms that carries the moment it was written."""

FLOOD = """
import os, sys, time
size, sign = int(sys.argv[1]), sys.argv[2]
line = b"2026-11-15 14:02:11 INFO step 1234 loss 0.1234 lr 1e-4 throughput 1234 tok/s node n1\\n"
block = line * (65536 // len(line))
while not os.path.exists(sign):
    os.write(1, b"ready\\n")
    time.sleep(0.1)
while size > 0:
    size -= os.write(1, block)
os.write(1, b"END\\n")
time.sleep(600)
"""
"""So many bytes as fast as the file takes them, once its sign is there."""

FLOOD_BYTES = 100_000_000
_PAD = 4096
_FRESH_MS = 500.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the bench that runs."""

    id: int
    file: Path
    """As its node sees it."""


class Bench:
    """The lab, with someone signed in."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._number = 0
        self.sign_in()

    def sign_in(self) -> None:
        self.token = str(self.lab.oidc.token(OWNER, "openid")["access_token"])

    @property
    def bearer(self) -> dict[str, str]:
        return {"LATTICE_TOKEN": self.token}

    def name(self) -> str:
        self._number += 1
        return f"/home/{OWNER}/bench-{os.getpid()}-{self._number}"

    def seen_from_here(self, path: str) -> Path:
        """A file of the lab's homes, at the host."""
        return self.lab.layout.home / Path(path).relative_to("/home")

    @contextmanager
    def job(
        self, program: str, *words: str, with_srun: bool = False, node: str = NODE
    ) -> Iterator[Job]:
        """A job whose own process runs this Python program."""
        source, out = self.name() + ".py", self.name() + ".out"
        self.seen_from_here(source).write_text(program)
        self.seen_from_here(source).chmod(0o644)
        launch = "srun" if with_srun else "exec"
        wrap = f"{launch} /usr/bin/python3 {source} {' '.join(words)}"
        number = self.lab.sbatch(OWNER, f"--nodelist={node}", "-o", out, wrap=wrap)
        try:
            self.lab.wait_job_state(number, "RUNNING")
            yield Job(number, Path(out))
        finally:
            self.lab.jobs.cancel(number)
            self.seen_from_here(source).unlink(missing_ok=True)
            self.seen_from_here(out).unlink(missing_ok=True)

    def until_written(self, job: Job, timeout_s: float = 60.0) -> None:
        """Its first line is in the file: its step runs, too."""
        deadline, file = time.monotonic() + timeout_s, self.seen_from_here(str(job.file))
        while not (file.exists() and file.stat().st_size):
            if time.monotonic() > deadline:
                raise AssertionError(f"job {job.id} writes nothing")
            time.sleep(0.1)

    def follow(self, job: Job, *words: str) -> subprocess.Popen[str]:
        """The real command, in a pipe."""
        command = ["lattice", "logs", str(job.id), "--follow", "--prefix", "none", *words]
        return self.lab.popen_as(OWNER, command, env=self.bearer)


@contextmanager
def ended(viewer: subprocess.Popen[str]) -> Iterator[int]:
    """The descriptor of what a viewer prints; the viewer is killed at the end."""
    assert viewer.stdout is not None
    try:
        yield viewer.stdout.fileno()
    except AssertionError as error:
        viewer.kill()
        raise AssertionError(f"{error}; it said: {viewer.communicate()[1]}") from None
    finally:
        viewer.kill()
        viewer.communicate()


def line_ages_ms(descriptor: int, count: int, skip: int, timeout_s: float = 60.0) -> list[float]:
    """How old lines of the ticker are when they are printed.

    Counted from the first on that is fresh: those before it were written before anyone looked.
    """
    ages: list[float] = []
    rest, deadline = b"", time.monotonic() + timeout_s
    while len(ages) < count + skip:
        text = _some(descriptor, deadline)
        now = time.time_ns()
        *lines, rest = (rest + text).split(b"\n")
        found = [(now - int(line.split(b" ", 1)[0])) / 1e6 for line in lines if line[:1].isdigit()]
        ages += found if ages or (found and found[-1] < _FRESH_MS) else []
    return ages[skip:]


def flood_mb_per_s(descriptor: int, sign: Path, size: int, timeout_s: float = 120.0) -> float:
    """From the sign to the last byte, read by a viewer that sees the job wait."""
    deadline = time.monotonic() + timeout_s
    seen = b""
    while b"ready" not in seen:
        seen = _some(descriptor, deadline)
    begun = time.perf_counter()
    sign.touch()
    got, end = 0, b""
    while not end.endswith(b"END\n"):
        text = _some(descriptor, deadline)
        got += len(text)
        end = (end + text)[-_PAD:]
    if got < size:
        raise AssertionError(f"{got} of {size} bytes came")
    return size / 1e6 / (time.perf_counter() - begun)


def _some(descriptor: int, deadline: float) -> bytes:
    ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    if not ready:
        raise AssertionError("nothing came in time")
    text = os.read(descriptor, 1024 * 1024)
    if not text:
        raise AssertionError("the viewer has ended")
    return text


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def cpu_s(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def flood(bench: Bench, *, with_srun: bool = False) -> Iterator[tuple[Job, Path]]:
    """A job that waits for its sign, and the sign."""
    sign = bench.name() + ".go"
    words = (str(FLOOD_BYTES), sign)
    try:
        with bench.job(FLOOD, *words, with_srun=with_srun) as job:
            bench.until_written(job)
            yield job, bench.seen_from_here(sign)
    finally:
        bench.seen_from_here(sign).unlink(missing_ok=True)


def note(what: str, words: Mapping[str, object]) -> None:
    """For whoever watches the bench."""
    print(f"{what}: {json.dumps(words)}", file=sys.stderr, flush=True)
