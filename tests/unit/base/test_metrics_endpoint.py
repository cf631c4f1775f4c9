"""A page for a scraper: where it may be served, and what it costs at most."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from lattice.base import metrics_endpoint
from lattice.base.metrics_endpoint import (
    MetricsAddress,
    MetricsEndpoint,
    local_metrics_address,
    metrics_address,
)
from tests.eventually import eventually_async
from tests.fakes.manual_clock import ManualClock


@pytest.mark.parametrize(
    ("text", "address", "local"),
    [
        ("unix:/run/x.sock", MetricsAddress(path=Path("/run/x.sock")), True),
        ("127.0.0.1:9106", MetricsAddress(host="127.0.0.1", port=9106), True),
        ("[::1]:9106", MetricsAddress(host="::1", port=9106), True),
        ("localhost:9106", MetricsAddress(host="127.0.0.1", port=9106), True),
        ("0.0.0.0:9106", MetricsAddress(host="0.0.0.0", port=9106), False),
        ("10.0.0.7:9106", MetricsAddress(host="10.0.0.7", port=9106), False),
    ],
)
def test_addresses(text: str, address: MetricsAddress, local: bool) -> None:
    assert metrics_address(text) == address
    assert address.is_local is local
    if not local:
        with pytest.raises(ValueError, match="not a loopback address"):
            local_metrics_address(text)


@pytest.mark.parametrize("text", ["9106", "host.example:9106", "127.0.0.1", "127.0.0.1:0", "::1:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each fault has its own text
        metrics_address(text)


Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Pages:
    """Counts how often a page was made."""

    made = 0

    def __call__(self) -> str:
        self.made += 1
        return f"page {self.made}\n"


@asynccontextmanager
async def served(path: Path, pages: Pages, clock: ManualClock) -> AsyncIterator[None]:
    endpoint = MetricsEndpoint(
        MetricsAddress(path=path), pages, reuse_s=1.0, monotonic=clock.monotonic
    )
    async with running(endpoint, path):
        yield


@asynccontextmanager
async def running(endpoint: MetricsEndpoint, path: Path) -> AsyncIterator[None]:
    task = asyncio.create_task(endpoint.run())
    await eventually_async(path.is_socket)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def get(path: Path, target: str = "/metrics") -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.spec("OPS-8", "LIMIT-4")
@pytest.mark.threat("metrics-listener")
async def test_many_scrapers_cost_one_page_a_second(tmp_path: Path) -> None:
    path, pages, clock = tmp_path / "m.sock", Pages(), ManualClock()
    async with served(path, pages, clock):
        answers = await asyncio.gather(*(get(path) for _ in range(5)))
        assert all(each.endswith(b"page 1\n") for each in answers)
        clock.advance(1.0)
        assert (await get(path)).endswith(b"page 2\n")
    assert not path.exists()


@pytest.mark.spec("OPS-8")
@pytest.mark.threat("metrics-listener")
async def test_there_is_one_page_and_a_bound_of_connections(tmp_path: Path) -> None:
    path, pages = tmp_path / "m.sock", Pages()
    async with served(path, pages, ManualClock()):
        for target in ("/", "/v1/allocations", "/metrics/more", "/healthz"):
            assert (await get(path, target)).startswith(b"HTTP/1.1 404 ")
        assert pages.made == 0
        silent = [await asyncio.open_unix_connection(path) for _ in range(9)]
        assert await silent[0][0].read() == b"", "the oldest of nine is closed"
        assert not any(each.at_eof() for each, _ in silent[1:])
        closed(silent)


@pytest.mark.spec("OPS-8")
@pytest.mark.threat("metrics-listener")
async def test_a_scrape_succeeds_while_slow_connections_are_held(tmp_path: Path) -> None:
    path, pages = tmp_path / "m.sock", Pages()
    async with served(path, pages, ManualClock()):
        silent = [await asyncio.open_unix_connection(path) for _ in range(8)]
        for _ in range(3):
            assert (await get(path)).endswith(b"page 1\n")
        closed(silent)


@pytest.mark.threat("metrics-listener")
async def test_who_has_most_connections_loses_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = iter(["uid 7", *("uid 66" for _ in range(30)), "uid 7"])
    monkeypatch.setattr(metrics_endpoint, "socket_peer", lambda _: next(peers))
    path = tmp_path / "m.sock"
    async with served(path, Pages(), ManualClock()):
        scraper = await asyncio.open_unix_connection(path)
        hostile = [await asyncio.open_unix_connection(path) for _ in range(30)]
        for reader, _ in hostile[:23]:
            assert await reader.read() == b""
        scraper[1].write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await scraper[0].read()).endswith(b"page 1\n")
        assert (await get(path)).endswith(b"page 1\n")
        closed([scraper, *hostile])


@pytest.mark.threat("metrics-listener")
async def test_who_reads_nothing_loses_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_endpoint, "_ANSWER_S", 0.2)
    path = tmp_path / "m.sock"
    endpoint = MetricsEndpoint(MetricsAddress(path=path), lambda: "x" * 4_000_000)
    async with running(endpoint, path):
        with socket.socket(socket.AF_UNIX) as slow:
            slow.connect(str(path))
            slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            await eventually_async(requests)
            await eventually_async(lambda: not requests())


def closed(connections: Iterable[Connection]) -> None:
    for _, writer in connections:
        writer.close()


def requests() -> list[str]:
    """Requests that are being answered."""
    return [each.get_name() for each in asyncio.all_tasks() if each.get_name() == "metrics request"]
