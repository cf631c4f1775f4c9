"""How benches measure: parts in processes of their own, what those use, and a store to ask."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import structlog

from lab.identity import children

HERE = "127.0.0.1"
TELL_S = 0.25
"""How often a part that tells how it is does so."""
_MOST_FILES = 65_536
_STARTED_WITHIN_S = 60.0
_ENDED_WITHIN_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_CALM_CORES = 0.15
"""What agent and server use together when nobody asks them for anything, and some more."""


class Part:
    """Another process of a bench: what it says is JSON, one line after another."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.last: dict[str, Any] = {}
        self._said = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._hear, name=words[0], daemon=True)
        self._reader.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._said:
                self.last = json.loads(line)
                self._said.notify_all()
        with self._said:
            self._over = True
            self._said.notify_all()

    def until(self, holds: Callable[[dict[str, Any]], bool], within_s: float) -> dict[str, Any]:
        """What it says last, once this holds of it: a part says again what has to be known."""
        deadline = time.monotonic() + within_s
        with self._said:
            while not (self.last and holds(self.last)):
                left_s = deadline - time.monotonic()
                if self._over or left_s <= 0:
                    raise SystemExit(f"{self.process.args!r}: only {self.last} in {within_s:g} s")
                self._said.wait(left_s)
            return self.last

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self._reader.join(_ENDED_WITHIN_S)
        if not self._reader.is_alive():  # a process that the part started may hold the pipe
            self.process.stdout.close()


def end_with_the_first() -> None:
    """A part ends when whoever started it does, however that was."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def quiet() -> None:
    """A part whose nodes are made up has nothing to log."""
    logging.disable(logging.WARNING)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


def allow_many_files() -> None:
    """Every connection is one; the parts inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _MOST_FILES)), hard))


def processor_s(pid: int) -> float:
    """Processor time of a process, all its threads together."""
    # The clock that clock_getcpuclockid(3) names. It has nanoseconds, where stat has 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


def family(pid: int) -> list[int]:
    """A process and all its descendants that run."""
    found = [pid]
    for each in found:
        found += children(each)
    return found


def family_processor_s(pid: int) -> float:
    """Processor time of a process and its descendants, those that have ended included."""
    total = 0.0
    for each in family(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += processor_s(each) + (int(fields[13]) + int(fields[14])) / _TICKS
    return total


class Meter:
    """Processor seconds of processes since it was made, each with its descendants."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = self._now()
        self._begun = time.monotonic()

    @property
    def took_s(self) -> float:
        """By the wall."""
        return time.monotonic() - self._begun

    def used_s(self) -> dict[str, float]:
        """By the names of the processes."""
        return {name: now - self._before[name] for name, now in self._now().items()}

    def until_calm(self, window_s: float = 0.5, within_s: float = 15.0) -> None:
        """Wait until they hardly work: a process may defer what the measured act costs."""
        deadline = time.monotonic() + within_s
        before = sum(self._now().values())
        while time.monotonic() < deadline:
            time.sleep(window_s)
            now = sum(self._now().values())
            if now - before < _CALM_CORES * window_s:
                return
            before = now

    def _now(self) -> dict[str, float]:
        return {name: family_processor_s(pid) for name, pid in self._pids.items()}


def resident_kb(pid: int) -> int:
    """The memory that a process has now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def most_resident_kb() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def interleaved(rounds: int, *acts: Callable[[], Awaitable[None]]) -> Sequence[list[float]]:
    """Milliseconds of each, round by round; one that is not counted first."""
    found: list[list[float]] = [[] for _ in acts]
    for number in range(rounds + 1):
        for took, act in zip(found, acts, strict=True):
            begun = time.perf_counter()
            await act()
            if number:
                took.append((time.perf_counter() - begun) * 1000)
    return found


def program(name: str, package: str, places: Sequence[str] = ("/usr/bin",)) -> str:
    """A program of the machine's; what to do if it is not there."""
    for place in places:
        if Path(place, name).exists():
            return f"{place}/{name}"
    raise SystemExit(
        f"{name} is not installed: run scripts/setup, or "
        f"`apt-get install --no-install-recommends {package}`"
    )


def free_port() -> int:
    with socket.create_server((HERE, 0)) as door:
        return int(door.getsockname()[1])


async def answering(url: str) -> None:
    """Until something does."""
    async with asyncio.timeout(_STARTED_WITHIN_S), httpx2.AsyncClient(trust_env=False) as http:
        while True:
            try:
                await http.get(url)
            except httpx2.HTTPError:
                await asyncio.sleep(0.05)
            else:
                return


@dataclass(frozen=True, slots=True)
class RunningStore:
    """A VictoriaMetrics of the bench's own."""

    url: str
    pid: int
    folder: str
    """For whatever else the bench has to keep; gone when the store is."""


@contextmanager
def metric_store() -> Iterator[RunningStore]:
    """Empty, and answering."""
    path = program("victoria-metrics", "victoria-metrics")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("wb") as log:
        words = [path, f"-storageDataPath={folder}/data", f"-httpListenAddr={HERE}:{port}"]
        engine = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            url = f"http://{HERE}:{port}"
            asyncio.run(answering(f"{url}/health"))
            yield RunningStore(url, engine.pid, folder)
        finally:
            engine.terminate()
            engine.wait()
