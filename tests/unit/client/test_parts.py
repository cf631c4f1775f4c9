"""An answer that comes in parts, and a refusal that names a time: callers see neither."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lattice.base.call import BytesCall, Call
from lattice.base.errors import RateLimited
from lattice.client import Client, SyncClient
from lattice.client.tokens import FixedToken
from lattice.features.identity.model import Identity
from lattice.features.logs import operations
from lattice.features.logs.model import LogPage
from tests.fakes import answers, logs
from tests.fakes.web import Answer, Request, Web, web
from tests.unit.client.test_doors import at

PATH = "/v1/allocations/42/logs"
Ask = Callable[[Web, Any], tuple[Any, list[float]]]


def blocking(server: Web, call: Any) -> tuple[Any, list[float]]:
    slept: list[float] = []
    client = SyncClient(at(server), tokens=FixedToken("t0k3n"), environment={})
    if isinstance(call, BytesCall):
        return b"".join(client.fetch(call, sleep=slept.append)), slept
    return client.call(call, sleep=slept.append), slept


def asynchronous(server: Web, call: Any) -> tuple[Any, list[float]]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def run() -> Any:
        async with Client(at(server), tokens=FixedToken("t0k3n"), environment={}) as client:
            if isinstance(call, BytesCall):
                return b"".join([piece async for piece in client.fetch(call, sleep=sleep)])
            return await client.call(call, sleep=sleep)

    return asyncio.run(run()), slept


@pytest.fixture(params=[blocking, asynchronous], ids=["blocking", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


@pytest.fixture
def server() -> Iterator[Web]:
    with web({}) as running:
        yield running


def page(*records: dict[str, Any], cursor: str = "") -> dict[str, Any]:
    return {
        "allocation": "42",
        "attempt": 1,
        "attempts": 1,
        "records": list(records),
        "cursor": cursor,
        "finished": not cursor,
    }


def too_many(after: str) -> Answer:
    return Answer(answers.refusal("rate_limited", "Too many."), 429, {"Retry-After": after})


def in_turn(*replies: Any) -> Callable[[Request], Any]:
    left = list(replies)
    return lambda _: left.pop(0)


def texts(found: LogPage) -> list[str]:
    return [each.text if each.type == "lines" else each.type for each in found.records]


@pytest.mark.spec("LOG-6")
def test_a_page_that_was_much_work_is_one_page(ask: Ask, server: Web) -> None:
    away = logs.note("archive_away")
    server.routes[PATH] = in_turn(
        page(away, logs.block("a\nb\n", 3), logs.gap(), cursor="c1"),
        page(away, cursor="c2"),
        page(away, logs.gap(), logs.block("c\n", 90), cursor="c3"),
    )
    call = operations.read_logs("42", limit=3, offset=10, tail=50, grep="x", nodes=("n1",))
    found, _ = ask(server, call)
    assert texts(found) == ["note", "a\nb\n", "gap", "c\n"]
    assert (found.cursor, found.finished) == ("c3", False), "the caller's own next page"
    first, second, third = (each.query for each in server.requests)
    assert (first["limit"], first["offset"], first["tail"]) == (["3"], ["10"], ["50"])
    assert second == {"node": ["n1"], "grep": ["x"], "limit": ["1"], "cursor": ["c1"]}
    assert third["cursor"] == ["c2"]


@pytest.mark.spec("LOG-6")
def test_the_last_part_ends_it(ask: Ask, server: Web) -> None:
    server.routes[PATH] = in_turn(page(cursor="c1"), page(logs.block("a\n")))
    found, _ = ask(server, operations.read_logs("42", grep="a"))
    assert (texts(found), found.cursor, found.finished) == (["a\n"], "", True)
    assert server.requests[1].query["limit"] == ["1000"]


@pytest.mark.spec("LIMIT-2")
def test_a_refusal_that_names_a_time_is_waited_out(ask: Ask, server: Web) -> None:
    server.routes[PATH] = in_turn(too_many("1"), too_many("2"), page(logs.block("a\n")))
    found, slept = ask(server, operations.read_logs("42"))
    assert texts(found) == ["a\n"]
    assert slept == [1.0, 2.0]


@pytest.mark.spec("LIMIT-2")
def test_but_not_for_ever_and_not_for_other_calls(ask: Ask, server: Web) -> None:
    server.routes["*"] = too_many("7")
    with pytest.raises(RateLimited):
        ask(server, operations.read_logs("42"))
    assert len(server.requests) == 9, "a minute"
    with pytest.raises(RateLimited):
        ask(server, Call("GET", "/v1/auth/whoami", Identity))
    assert len(server.requests) == 10


@pytest.mark.spec("LIMIT-2")
def test_a_download_waits_its_turn(ask: Ask, server: Web) -> None:
    raw = operations.raw_logs("42", node="n1", stream="stdout", source="batch")
    whole = Answer(b"bytes", 200, {"lattice-end-offset": "5"})
    server.routes[f"{PATH}/raw"] = in_turn(too_many("2"), whole)
    assert ask(server, raw) == (b"bytes", [2.0])
    no_time = Answer(answers.refusal("rate_limited", "Too many."), 429)
    server.routes[f"{PATH}/raw"] = no_time
    with pytest.raises(RateLimited):
        ask(server, raw)
