"""The forms of a stream of logs over REST: a client gets what it accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from lattice.base.clock import SystemClock
from lattice.features.logs.block_reader import BlockReader
from lattice.features.logs.blocks import MEDIA_TYPE
from lattice.wire.rest import accepted_parameters
from tests.fakes.cluster import populated
from tests.fakes.server import bearer, composed

EVENTS = "text/event-stream"


@pytest.fixture
async def rest() -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=composed(populated(SystemClock())).rest)
    headers = bearer("sub-alice", preferred_username="alice")
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://lattice", headers=headers
    ) as client:
        yield client


@pytest.mark.spec("LOG-6")
async def test_a_client_gets_the_form_that_it_accepts(rest: httpx2.AsyncClient) -> None:
    path = "/v1/allocations/1/logs/stream"
    for accept in ("", "*/*", EVENTS, "application/json", f"{MEDIA_TYPE};q=0, {EVENTS}"):
        answer = await rest.get(path, headers={"accept": accept})
        assert answer.headers["content-type"].startswith(EVENTS), accept
        assert b"event: " in answer.content
    for accept in (MEDIA_TYPE, f"{MEDIA_TYPE};zstd=1, {EVENTS}", f"{EVENTS}, {MEDIA_TYPE};new=1"):
        answer = await rest.get(path, headers={"accept": accept})
        assert answer.headers["content-type"] == MEDIA_TYPE
        assert answer.headers["vary"] == "accept"
        *_, last = BlockReader().feed(answer.content)
        assert last.name in {"end", "error"}


@pytest.mark.parametrize(
    ("accept", "found"),
    [
        ("a/b", {}),
        ("A/B", {}),
        ("x/y, a/b;zstd=1", {"zstd": "1"}),
        (" a/b ; zstd = 1 ; q=0.5 ", {"zstd": "1", "q": "0.5"}),
        ("a/b;q=0", None),
        ("a/b;q=0.000", None),
        ("*/*", None),
        ("a/*", None),
        ("a/bc", None),
        ("", None),
        ("a/b;;", {"": ""}),
    ],
)
def test_the_parameters_of_what_is_accepted(accept: str, found: dict[str, str] | None) -> None:
    assert accepted_parameters(accept, "a/b") == found
