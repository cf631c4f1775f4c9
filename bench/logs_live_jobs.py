"""Jobs and viewers of the live benches: what a job's process writes, and who reads it when."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.stories import constant_text, log_text
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
size, sign, source, pace = int(sys.argv[1]), *sys.argv[2:5]
text = memoryview(open(source, "rb").read())
waited = 0
while not os.path.exists(sign):
    if waited % 20 == 0:
        os.write(1, b"ready\\n")
    waited += 1
    time.sleep(0.005)
begun, left, at = time.perf_counter(), size, 0
while left > 0:
    wrote = os.write(1, text[at : at + min(left, 65536)])
    left -= wrote
    at = (at + wrote) % len(text)
took = time.perf_counter() - begun
os.write(1, b"\\nEND\\n")
open(pace, "w").write(str(size / took / 1e6))
time.sleep(600)
"""
"""So many bytes of a text as fast as the file takes them, once its sign is there."""

FLOOD_BYTES = 100_000_000
FLOOD_TEXTS: Mapping[str, Callable[[int], bytes]] = {
    "varied lines": log_text,
    "one constant line": constant_text,
}
_TEXT_BYTES = 16 * 1024 * 1024
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
        self._texts: dict[str, str] = {}
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

    def text(self, name: str) -> str:
        """A file of the owner's home with one of the texts of floods."""
        if name not in self._texts:
            path = f"/home/{OWNER}/bench-{name.replace(' ', '-')}"
            self.seen_from_here(path).write_bytes(FLOOD_TEXTS[name](_TEXT_BYTES))
            self.seen_from_here(path).chmod(0o644)
            self._texts[name] = path
        return self._texts[name]

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


class TickerLines:
    """Lines of the ticker as a viewer prints them.

    They count from the first one on that is fresh: those before it were written earlier.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self._is_fresh = False

    def ages_ms(self, count: int, timeout_s: float = 60.0) -> list[float]:
        """How old the next lines are when they are printed; at least so many."""
        ages: list[float] = []
        deadline = time.monotonic() + timeout_s
        while len(ages) < count:
            text = _some(self._descriptor, deadline)
            now = time.time_ns()
            *lines, self._rest = (self._rest + text).split(b"\n")
            for line in lines:
                if line[:1].isdigit():
                    age_ms = (now - int(line.split(b" ", 1)[0])) / 1e6
                    self._is_fresh = self._is_fresh or age_ms < _FRESH_MS
                    ages += [age_ms] if self._is_fresh else []
        return ages


def until_ready(descriptor: int, timeout_s: float = 120.0) -> None:
    """A viewer prints that the job waits for its sign: all on the path have started."""
    deadline = time.monotonic() + timeout_s
    while b"ready" not in _some(descriptor, deadline):
        pass


def flood_mb_per_s(descriptor: int, sign: Path, size: int, timeout_s: float = 120.0) -> float:
    """From the sign to the last byte that a viewer prints."""
    deadline = time.monotonic() + timeout_s
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


@dataclass(frozen=True, slots=True)
class Flood:
    """A job that waits for its sign, then writes as fast as it can."""

    job: Job
    sign: Path
    _pace: Path

    def written_mb_per_s(self, timeout_s: float = 30.0) -> float:
        """How fast the job wrote, once it has."""
        deadline = time.monotonic() + timeout_s
        while not (self._pace.exists() and self._pace.stat().st_size):
            if time.monotonic() > deadline:
                raise AssertionError(f"job {self.job.id} does not finish")
            time.sleep(0.05)
        return float(self._pace.read_text())


@contextmanager
def flood(bench: Bench, text: str = "varied lines", *, with_srun: bool = False) -> Iterator[Flood]:
    """A flood of one of the texts."""
    sign, pace = bench.name() + ".go", bench.name() + ".pace"
    paths = (sign, bench.text(text), pace)
    try:
        with bench.job(FLOOD, str(FLOOD_BYTES), *paths, with_srun=with_srun) as job:
            bench.until_written(job)
            yield Flood(job, bench.seen_from_here(sign), bench.seen_from_here(pace))
    finally:
        for each in (sign, pace):
            bench.seen_from_here(each).unlink(missing_ok=True)


def note(what: str, words: Mapping[str, object]) -> None:
    """For whoever watches the bench."""
    print(f"{what}: {json.dumps(words)}", file=sys.stderr, flush=True)
