"""Where the port `MetricStore` is tried: in memory, VictoriaMetrics, and Prometheus if it is there.

The engines are started as they are, each on a folder and a port of its own, and killed at the end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lattice.adapters.http_store import HttpAddress
from lattice.adapters.metricstore.store import HttpMetricStore
from lattice.domain.metricstore import MetricStore
from tests.fakes.in_memory_metrics import InMemoryMetricStore

ENGINES = [pytest.param(name, marks=pytest.mark.lab) for name in ("victoriametrics", "prometheus")]
KINDS = ["memory", *ENGINES]
_UP_S = 20.0


@dataclass
class Place:
    """A store, how to make it show what was written, and what an accident would do."""

    store: MetricStore
    settle: Callable[[], Awaitable[None]]
    hang: Callable[[], None]
    go_on: Callable[[], None] = field(default=lambda: None)


@asynccontextmanager
async def place_of(kind: str, folder: Path) -> AsyncIterator[Place]:
    if kind == "memory":
        fake = InMemoryMetricStore()
        yield Place(
            fake,
            _at_once,
            lambda: setattr(fake, "away", True),
            lambda: setattr(fake, "away", False),
        )
        return
    async with engine(kind, folder) as (process, endpoint):
        store = HttpMetricStore(HttpAddress(url=endpoint), write_s=2.0)

        async def settle() -> None:
            if kind == "victoriametrics":
                await asyncio.to_thread(_asked, f"{endpoint}/internal/force_flush")

        try:
            yield Place(
                store,
                settle,
                lambda: _stopped(process),
                lambda: process.send_signal(signal.SIGCONT),
            )
        finally:
            await store.aclose()


@asynccontextmanager
async def engine(kind: str, folder: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    """A real one. Skips the test where it is not installed."""
    program = shutil.which({"victoriametrics": "victoria-metrics"}.get(kind, kind))
    if program is None:
        pytest.skip(f"{kind} is not installed")
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    arguments = _victoriametrics(folder, port)
    if kind == "prometheus":
        arguments = _prometheus(folder, port)
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log)
    try:
        await _answering(f"{endpoint}/{'-/ready' if kind == 'prometheus' else 'health'}", process)
        yield process, endpoint
    finally:
        process.kill()
        process.wait()


def _stopped(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def _victoriametrics(folder: Path, port: int) -> list[str]:
    return [
        f"-storageDataPath={folder / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=7d",
        "-search.latencyOffset=0s",
        "-search.disableCache",
    ]


def _prometheus(folder: Path, port: int) -> list[str]:
    config = folder / "prometheus.yml"
    config.write_text("global: {}\n")
    return [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
    ]


async def _answering(url: str, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(_UP_S):
        while True:
            assert process.poll() is None, "the engine has ended"
            try:
                await asyncio.to_thread(_asked, url)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                return


def _asked(url: str) -> None:
    with urllib.request.urlopen(url, timeout=60) as answer:
        answer.read()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


async def _at_once() -> None:
    pass
