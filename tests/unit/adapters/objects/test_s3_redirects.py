"""A store that would lead the server elsewhere by a redirect: real sockets on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lattice.adapters.objects import CallLimits
from lattice.adapters.objects.s3 import S3Address, S3ObjectStore
from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from tests.fakes.s3_server import Answer, next_request

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class Listener:
    """Answers every request alike, and keeps what was asked."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[str] = []

    @asynccontextmanager
    async def open(self, host: str) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, host, 0)
        async with server:
            yield f"http://{host}:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request := await next_request(reader):
            self.asked.append(f"{request.method} {request.target}")
            writer.write(self._answer.raw(head_only=request.method == "HEAD"))
        writer.close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def opened(folder: Path, endpoint: str) -> S3ObjectStore:
    (folder / "key").write_text("key\n")
    place = S3Address(
        bucket="lattice",
        endpoint=endpoint,
        region="us-east-1",
        access_key_file=folder / "key",
        secret_key_file=folder / "key",
        allow_http=True,
    )
    return S3ObjectStore(place, SystemClock(), CallLimits(tries=1))


async def _listed(store: S3ObjectStore) -> list[str]:
    return [each.key async for each in store.listing("")]


ACTS: dict[str, Callable[[S3ObjectStore], Awaitable[object]]] = {
    "read": lambda store: store.read("a"),
    "list": _listed,
    "put": lambda store: store.put("a", b"x"),
    "put_new": lambda store: store.put_new("a", b"x"),
}


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_a_redirect_leads_to_no_other_host(
    tmp_path: Path, act: Callable[[S3ObjectStore], Awaitable[object]], status: str
) -> None:
    """Attack 27: the store's answer names a host that the configuration does not."""
    elsewhere = Listener(Answer("200 OK", b"secret"))
    async with elsewhere.open("127.0.0.2") as address:
        location = {"location": f"{address}/latest/meta-data"}
        store = Listener(Answer(status, headers=location))
        async with store.open("127.0.0.1") as endpoint:
            with pytest.raises(Unavailable, match=r"redirects callers|answered 30"):
                await act(opened(tmp_path, endpoint))
    assert store.asked
    assert elsewhere.asked == []


async def test_a_proxy_of_the_environment_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Listener(Answer("200 OK", b"x", {"last-modified": "Tue, 17 Nov 2026 12:00:00 GMT"}))
    async with proxy.open("127.0.0.1") as address:
        monkeypatch.setenv("HTTP_PROXY", address)
        assert await opened(tmp_path, "http://127.0.0.2:9").read("a") == b"x"
    assert proxy.asked == ["GET http://127.0.0.2:9/lattice/a"]


async def test_a_store_that_needs_no_proxy_is_asked_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Listener(Answer("200 OK", b"x", {"last-modified": "Tue, 17 Nov 2026 12:00:00 GMT"}))
    async with store.open("127.0.0.1") as endpoint:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.2:9")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert await opened(tmp_path, endpoint).read("a") == b"x"
    assert store.asked == ["GET /lattice/a"]
