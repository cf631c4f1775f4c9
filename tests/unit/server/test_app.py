"""The REST application as a whole: its description, and the second prefix."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx2
import pytest

from lattice.features.logs.service.log_service import LogService
from lattice.server.listeners import rest_app as description
from lattice.server.listeners.rest_app import Description
from scripts.openapi import TARGET, current
from tests.fakes.server import bearer, composed


async def test_the_description_is_the_one_that_is_checked_in() -> None:
    """A change of the interface is made on purpose: `just generate` writes the file anew."""
    assert json.loads(await current()) == json.loads(TARGET.read_text())


async def test_the_description_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def describe(routes: object) -> str:
        built.append(routes)
        return "{}"

    monkeypatch.setattr(description, "describe", describe)
    routes = composed().routes
    once = Description(lambda: routes)
    assert await asyncio.gather(*(once.text() for _ in range(5))) == ["{}"] * 5
    assert built == [routes]


@pytest.fixture
async def rest() -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=composed().rest)
    return httpx2.AsyncClient(transport=transport, base_url="http://server")


@pytest.mark.parametrize("path", ["/allocations", "/nodes/n%31", "/allocations?state=running"])
async def test_the_second_prefix_gives_the_same_answer(rest: httpx2.AsyncClient, path: str) -> None:
    headers = bearer("sub-alice", preferred_username="alice")
    first = await rest.get(f"/v1{path}", headers=headers)
    second = await rest.get(f"/api/v1{path}", headers=headers)
    assert first.status_code == second.status_code
    assert first.json().keys() == second.json().keys()


@pytest.mark.parametrize("path", ["/api/v1allocations", "/api/v2/nodes", "/api/api/v1/nodes"])
async def test_no_other_prefix_is_served(rest: httpx2.AsyncClient, path: str) -> None:
    answer = await rest.get(path, headers=bearer("sub-alice", preferred_username="alice"))
    assert answer.status_code == 404


@pytest.mark.timing
async def test_composing_a_server_takes_at_most_0_4_s_of_processor() -> None:
    composed()  # what is imported and built once is there
    spent_s = []
    for _ in range(3):
        begun = time.process_time()
        composed()
        spent_s.append(time.process_time() - begun)
    assert min(spent_s) <= 0.4


@pytest.mark.spec("LIMIT-4")
async def test_an_answer_nobody_waits_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for a page ends, and the log has a status that nobody was sent."""
    ended = asyncio.Event()

    async def page(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(LogService, "page", page)
    headers = bearer("sub-alice", preferred_username="alice")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/v1/allocations/7/logs",
        "raw_path": b"/v1/allocations/7/logs",
        "query_string": b"grep=x",
        "root_path": "",
        "scheme": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("server", 80),
    }
    coming = iter([{"type": "http.request", "body": b""}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(coming)

    async def send(message: Any) -> None:
        sent.append(message)

    await composed().rest(scope, receive, send)
    assert ended.is_set()
    assert sent[0]["status"] == 499
