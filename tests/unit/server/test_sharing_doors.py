"""Sharing through both doors of a whole server: what one opens the other shows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from lattice.base.clock import SystemClock
from lattice.server.listeners.composition import Faces
from tests.fakes.cluster import populated
from tests.fakes.server import bearer, composed


@pytest.fixture
async def faces() -> Faces:
    return composed(populated(SystemClock()))


@pytest.fixture
async def rest(faces: Faces) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=faces.rest)
    async with httpx2.AsyncClient(transport=transport, base_url="http://lattice") as client:
        yield client


class Caller:
    def __init__(self, rest: httpx2.AsyncClient, name: str, **claims: Any) -> None:
        self._rest = rest
        self._headers = bearer(f"sub-{name}", preferred_username=name, **claims)

    async def get(self, path: str) -> httpx2.Response:
        return await self._rest.get(f"/v1/allocations/{path}", headers=self._headers)

    async def post(
        self, path: str, headers: dict[str, str] | None = None, **body: Any
    ) -> httpx2.Response:
        headers = self._headers | {"content-type": "application/json"} | (headers or {})
        content = json.dumps(body).encode()
        return await self._rest.post(f"/v1/allocations/{path}", headers=headers, content=content)


@pytest.mark.spec("AUTH-7", "AUTH-12")
async def test_from_sharing_to_unsharing(rest: httpx2.AsyncClient) -> None:
    """Job 1 is alice's; bob is of another tenant, and the admin of it governs nothing of hers."""
    alice, bob = Caller(rest, "alice"), Caller(rest, "bob")
    admin = Caller(rest, "pat", scope="tenant:admin", tenant="physics")
    stranger = Caller(rest, "ben", scope="tenant:admin", tenant="biology")
    assert (await bob.get("1/logs")).status_code == 404
    shared = await alice.post("1/share", user="bob", duration_s=3600)
    assert shared.status_code == 200, shared.text
    assert [each["user"] for each in shared.json()["shares"]] == ["bob"]
    for path in ("1", "1/logs", "1/logs/streams", "1/logs/stream"):
        assert (await bob.get(path)).status_code == 200, path
        assert (await admin.get(path)).status_code == 200, path
        assert (await stranger.get(path)).status_code == 404, path
    for path in ("5", "5/logs"):
        assert (await bob.get(path)).status_code == 404, "her other job"
    assert (await bob.post("1/cancel")).status_code == 404
    assert (await bob.get("1/shares")).status_code == 404
    told = (await alice.get("1/shares")).json()["readers"]
    assert {(each["reader"], each["standing"]) for each in told} == {
        ("bob", "shared"),
        ("pat", "tenant admin"),
    }
    assert (await alice.get("1")).json()["readers"] == told
    assert (await bob.get("1")).json()["readers"] == []
    assert (await alice.post("1/unshare", user="bob")).json()["shares"] == []
    assert (await alice.post("1/unshare", user="bob")).status_code == 404
    again = await alice.post("1/unshare", user="bob", headers={"Lattice-Repeated": "true"})
    assert (again.status_code, again.json()["shares"]) == (200, [])
    for path in ("1", "1/logs", "1/logs/streams", "1/logs/stream"):
        theirs, absent = await bob.get(path), await bob.get(path.replace("1", "777", 1))
        assert (theirs.status_code, absent.status_code) == (404, 404), path
        assert _words(theirs, "1") == _words(absent, "777")


def _words(answer: httpx2.Response, name: str) -> tuple[str, str]:
    error = answer.json()["error"]
    return error["message"].replace(f" {name} ", " N "), error["hint"]


async def test_what_makes_no_sense_is_refused(rest: httpx2.AsyncClient) -> None:
    alice = Caller(rest, "alice")
    for body in ({"user": "nobody"}, {"user": "alice"}, {"user": "bob", "duration_s": 10**9}):
        assert (await alice.post("1/share", **body)).status_code == 400, body
    assert (await alice.post("1/share")).status_code == 400
    assert (
        await Caller(rest, "alice", scope="readonly").post("1/share", user="bob")
    ).status_code == 403
