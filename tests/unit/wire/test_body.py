"""Bodies of requests that change something: read after the guard, bounded, strict."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from lattice.base.errors import LatticeError, LoginRequired
from lattice.wire.guard import GuardedRoutes
from lattice.wire.status import http_error

RPC = "lattice.v1.Test/Change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    name: str
    count: int = 0
    labels: dict[str, str] = field(default_factory=dict)


class Door:
    """An application with one route, and what its guard does."""

    def __init__(self) -> None:
        self.refuse = False
        self.seen: list[Wanted] = []
        self.read = 0
        self.routes: GuardedRoutes[str] = GuardedRoutes({RPC: "ADMINISTER"}, self._authorise)

        @self.routes.change("POST", "/change", rpc=RPC, body=Wanted)
        async def change(request: Request) -> dict[str, Any]:
            self.seen.append(await self.routes.body(request, Wanted, 200))
            return {}

        self.app = FastAPI(openapi_url=None)
        self.app.router.routes.extend(self.routes.router.routes)
        self.app.add_exception_handler(LatticeError, _told)

    async def _authorise(self, *, rpc: str, permission: str, authorization: str) -> str:
        assert (rpc, permission, authorization) == (RPC, "ADMINISTER", "")
        if self.refuse:
            raise LoginRequired("Not logged in.")
        return "someone"

    async def post(self, content: Any, **headers: str) -> httpx2.Response:
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=self.app), base_url="http://server"
        ) as client:
            given = {"content-type": "application/json"} | headers
            return await client.post("/v1/change", content=content, headers=given)


async def _told(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, LatticeError)
    status, body, headers = http_error(error, "r")
    return JSONResponse(body, status_code=status, headers=headers)


@pytest.fixture
def door() -> Door:
    return Door()


async def test_a_body_is_read_as_its_dataclass(door: Door) -> None:
    answer = await door.post(b'{"name": "x", "count": 2, "labels": {"a": "b"}}')
    assert answer.status_code == 200
    assert door.seen == [Wanted(name="x", count=2, labels={"a": "b"})]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b'"x"', b'{"count": 1}', b'{"name": 1}',
        b'{"name": "x", "count": "2"}', b'{"name": "x", "count": true}',
        b'{"name": "x", "labels": {"a": 1}}', b'{"name": "x", "nodes": 2}',
        b'{"name": "\xff"}', b"[" * 190, b'{"name": "' + b"x" * 300 + b'"}',
    ],
)  # fmt: skip
async def test_anything_else_is_usage(door: Door, content: bytes) -> None:
    answer = await door.post(content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "usage")
    assert door.seen == []


async def test_it_has_to_be_said_to_be_json(door: Door) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = await door.post(b'{"name": "x"}', **{"content-type": kind})
        assert answer.status_code == 400
    answer = await door.post(b'{"name": "x"}', **{"content-type": "Application/JSON; charset=x"})
    assert answer.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site"])
async def test_a_page_of_another_site_changes_nothing(door: Door, site: str) -> None:
    answer = await door.post(b'{"name": "x"}', **{"sec-fetch-site": site})
    assert (answer.status_code, door.seen) == (403, [])
    for own in ("same-origin", "none"):
        assert (await door.post(b'{"name": "x"}', **{"sec-fetch-site": own})).status_code == 200


async def test_a_stranger_s_body_is_not_read(door: Door) -> None:
    door.refuse = True
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1000:
            sent += 1
            yield b"x" * 1000

    assert (await door.post(endless())).status_code == 401
    door.refuse = False
    assert (await door.post(endless())).status_code == 400


def test_the_description_says_what_it_takes(door: Door) -> None:
    routes = door.routes.described().routes
    described = get_openapi(title="", version="1", routes=routes)
    operation = described["paths"]["/v1/change"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == {"name", "count", "labels"}
    assert schema["additionalProperties"] is False


def test_reading_is_not_changing(door: Door) -> None:
    with pytest.raises(ValueError, match="changes nothing"):
        door.routes.change("GET", "/x", rpc=RPC)
    assert door.routes.rpc_of_route["POST", "/v1/change"] == RPC
    assert ("GET", "/v1/change") not in door.routes.rpc_of_route
