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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import structlog

HERE = "127.0.0.1"
TELL_S = 0.25
"""How often a part that tells how it is does so."""
_MOST_FILES = 65_536
_STARTED_WITHIN_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


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
        threading.Thread(target=self._hear, name=words[0], daemon=True).start()

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
    """What a process has used, all its threads together."""
    told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / _TICKS


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
