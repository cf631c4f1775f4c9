"""The REST application as a whole: its description, and the second prefix."""

from __future__ import annotations

import asyncio
import json
import time

import httpx2
import pytest

from lattice.server import description
from lattice.server.description import Description
from scripts.openapi import TARGET, current
from tests.fakes.server import bearer, composed


async def test_the_description_is_the_one_that_is_checked_in() -> None:
    """A change of the interface is made on purpose: `just generate` writes the file anew."""
    assert json.loads(await current()) == json.loads(TARGET.read_text())


async def test_the_description_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def describe(app: object) -> str:
        built.append(app)
        return "{}"

    monkeypatch.setattr(description, "describe", describe)
    app = composed().rest
    once = Description(app)
    assert await asyncio.gather(*(once.text() for _ in range(5))) == ["{}"] * 5
    assert built == [app]


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
