"""A whole server in memory: what a lock does to calls."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.fakes.server import bearer, composed

ALICE = bearer("alice", preferred_username="alice")
OLGA = bearer("olga", scope="operator")


@pytest.fixture
async def rest() -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=composed().rest)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


async def act(rest: httpx2.AsyncClient, path: str, **order: str) -> None:
    answer = await rest.post(path, json=order, headers=OLGA)
    assert answer.status_code == 200, answer.text


@pytest.mark.spec("AUTH-13")
@pytest.mark.threat("stolen-token")
async def test_a_locked_user_is_refused_with_the_reason(rest: httpx2.AsyncClient) -> None:
    await act(rest, "/v1/locks", kind="user", target="alice", reason="stolen laptop")
    for path in ("/v1/auth/whoami", "/v1/allocations"):
        refused = await rest.get(path, headers=ALICE)
        assert refused.status_code == 403
        assert "locked: stolen laptop" in refused.text
    assert (await rest.get("/v1/auth/whoami", headers=bearer("bob"))).status_code == 200
    await act(rest, "/v1/locks/unlock", kind="user", target="alice")
    assert (await rest.get("/v1/auth/whoami", headers=ALICE)).status_code == 200


@pytest.mark.spec("AUTH-13")
@pytest.mark.threat("lock-out")
async def test_who_locked_everything_can_still_unlock_it(rest: httpx2.AsyncClient) -> None:
    await act(rest, "/v1/locks", kind="all", reason="maintenance")
    assert (await rest.get("/v1/auth/whoami", headers=OLGA)).status_code == 403
    assert (await rest.get("/healthz")).status_code == 200
    shown = (await rest.get("/v1/locks", headers=OLGA)).json()
    assert [each["kind"] for each in shown["locks"]] == ["all"]
    await act(rest, "/v1/locks/unlock", kind="all")
    assert (await rest.get("/v1/auth/whoami", headers=ALICE)).status_code == 200
