"""The door of a WebSocket: who is refused gets an answer and no upgrade."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from lattice.base.errors import LatticeError, LoginRequired, NotFound, PermissionRefused
from lattice.wire.lines import LineClosed
from lattice.wire.websocket import SocketCaller, SocketEndpoint, SocketLine, SocketRules

PAGE = "https://page.example"


class Peer:
    """The ASGI server's side."""

    def __init__(self) -> None:
        self.inwards: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.outwards: list[dict[str, Any]] = []
        self.gone = False

    async def receive(self) -> dict[str, Any]:
        return await self.inwards.get()

    async def send(self, message: Any) -> None:
        if self.gone:
            raise OSError("gone")
        self.outwards.append(message)


class Door:
    def __init__(self) -> None:
        self.served: list[tuple[str, Mapping[str, str]]] = []
        self.defects: list[BaseException] = []
        self.failing: Exception | None = None
        rules = SocketRules(
            protocol="talk.v1",
            ticket_prefix="ticket.",
            origins=frozenset({PAGE}),
            redeem=self._redeem,
            check_path=self._check_path,
        )
        self.endpoint = SocketEndpoint(rules, self._authorise, self._serve, self.defects.append)

    async def _authorise(self, authorization: str) -> str:
        if authorization == "Bearer broken":
            raise RuntimeError("a defect")
        if authorization != "Bearer good":
            raise LoginRequired("Not logged in.")
        return "alice"

    async def _redeem(self, ticket: str, path: Mapping[str, str]) -> str:
        if (ticket, path["id"]) != ("77", "1"):
            raise LoginRequired("The ticket was not accepted.")
        return "a page of alice's"

    def _check_path(self, path: Mapping[str, str]) -> None:
        if path["id"] != "1":
            raise NotFound("No such path.")

    async def _serve(
        self, standing: SocketCaller[str], path: Mapping[str, str], line: SocketLine
    ) -> None:
        self.served.append((standing.caller, path))
        if self.failing is not None:
            raise self.failing
        await line.send_word(f"hello {standing.caller}")

    async def knock(
        self, *headers: tuple[str, str], protocols: tuple[str, ...] = ("talk.v1",), name: str = "1"
    ) -> Peer:
        peer = Peer()
        peer.inwards.put_nowait({"type": "websocket.connect"})
        scope = {
            "type": "websocket",
            "headers": [(name.encode(), value.encode()) for name, value in headers],
            "subprotocols": list(protocols),
            "path_params": {"id": name},
        }
        await self.endpoint(scope, peer.receive, peer.send)
        return peer


GOOD = ("authorization", "Bearer good")


@pytest.mark.spec("ATTACH-8")
async def test_a_program_shows_its_token() -> None:
    door = Door()
    peer = await door.knock(GOOD)
    assert [each["type"] for each in peer.outwards] == [
        "websocket.accept",
        "websocket.send",
        "websocket.close",
    ]
    assert peer.outwards[0]["subprotocol"] == "talk.v1"
    assert door.served == [("alice", {"id": "1"})]


@pytest.mark.spec("ATTACH-8")
async def test_a_page_shows_a_ticket() -> None:
    door = Door()
    peer = await door.knock(("origin", PAGE), protocols=("ticket.77", "talk.v1"))
    assert peer.outwards[0] == {"type": "websocket.accept", "subprotocol": "talk.v1"}
    assert door.served == [("a page of alice's", {"id": "1"})]


@pytest.mark.spec("ATTACH-8")
@pytest.mark.parametrize(
    ("headers", "protocols", "name", "status"),
    [
        ([], ("talk.v1",), "1", 401),
        ([("authorization", "Bearer bad")], ("talk.v1",), "1", 401),
        ([GOOD, GOOD], ("talk.v1",), "1", 401),
        ([GOOD], (), "1", 400),
        ([GOOD], ("talk.v2",), "1", 400),
        ([GOOD], ("talk.v1",), "2", 404),
        ([GOOD, ("origin", "https://evil.example")], ("talk.v1", "ticket.77"), "1", 403),
        ([GOOD, ("origin", PAGE), ("origin", PAGE)], ("talk.v1", "ticket.77"), "1", 403),
        ([GOOD, ("origin", "null")], ("talk.v1", "ticket.77"), "1", 403),
        ([GOOD, ("origin", "")], ("talk.v1", "ticket.77"), "1", 403),
        ([GOOD, ("origin", PAGE)], ("talk.v1",), "1", 401),
        ([("origin", PAGE)], ("talk.v1", "ticket.78"), "1", 401),
        ([("origin", PAGE)], ("talk.v1", "ticket.77", "ticket.77"), "1", 401),
        ([("cookie", "token=good")], ("talk.v1", "ticket.77"), "1", 401),
    ],
)
async def test_whoever_is_refused_gets_no_upgrade(
    headers: list[tuple[str, str]], protocols: tuple[str, ...], name: str, status: int
) -> None:
    door = Door()
    peer = await door.knock(*headers, protocols=protocols, name=name)
    assert [each["type"] for each in peer.outwards] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert peer.outwards[0]["status"] == status
    assert json.loads(peer.outwards[1]["body"])["error"]["message"]
    assert not door.served


async def test_a_defect_does_not_speak() -> None:
    door = Door()
    peer = await door.knock(("authorization", "Bearer broken"))
    assert peer.outwards[0]["status"] == 500
    assert b"defect" not in peer.outwards[1]["body"]
    door.failing = RuntimeError("another")
    peer = await door.knock(GOOD)
    assert peer.outwards[-1]["type"] == "websocket.close"
    assert b"another" not in json.dumps(peer.outwards).encode()
    assert len(door.defects) == 2


async def test_a_line_carries_both_and_tells_how_it_ended() -> None:
    peer = Peer()
    line = SocketLine(peer.receive, peer.send)
    peer.inwards.put_nowait({"type": "websocket.receive", "bytes": b""})
    peer.inwards.put_nowait({"type": "websocket.receive", "bytes": None, "text": "word"})
    assert await line.receive() == b""
    assert await line.receive() == "word"
    await line.send(b"\x00frame")
    assert peer.outwards == [{"type": "websocket.send", "bytes": b"\x00frame"}]
    peer.inwards.put_nowait({"type": "websocket.disconnect", "code": 1000})
    with pytest.raises(LineClosed) as closed:
        await line.receive()
    assert closed.value.orderly
    for late in (line.send(b"x"), line.send_word("x")):
        with pytest.raises(LineClosed):
            await late
    await line.close(1012, "")
    assert len(peer.outwards) == 1


@pytest.mark.parametrize("code", [1001, 1005, 1006, 1011, 1012])
async def test_any_other_end_is_none_that_was_meant(code: int) -> None:
    peer = Peer()
    line = SocketLine(peer.receive, peer.send)
    peer.inwards.put_nowait({"type": "websocket.disconnect", "code": code})
    with pytest.raises(LineClosed) as closed:
        await line.receive()
    assert not closed.value.orderly


async def test_sending_into_a_connection_that_is_gone_is_its_end() -> None:
    peer = Peer()
    line = SocketLine(peer.receive, peer.send)
    peer.gone = True
    with pytest.raises(LineClosed):
        await line.send(b"x")
    await line.close(1000, "")


@pytest.mark.spec("AUTH-8")
async def test_a_standing_is_looked_at_again_and_renewed_for_the_same_caller_only() -> None:
    tokens: dict[str, str | LatticeError] = {
        "Bearer one": "alice",
        "Bearer two": "alice",
        "Bearer other": "bob",
    }

    async def authorise(authorization: str) -> str:
        found = tokens[authorization]
        if isinstance(found, LatticeError):
            raise found
        return found

    standing = SocketCaller("alice", authorise, "Bearer one")
    assert await standing.check() == "alice"
    with pytest.raises(LoginRequired):
        await standing.renew("other", str.__eq__)
    assert await standing.renew("two", str.__eq__) == "alice"
    tokens["Bearer one"] = LoginRequired("over")
    assert await standing.check() == "alice", "the newer one is looked at"
    tokens["Bearer two"] = PermissionRefused("no more")
    with pytest.raises(PermissionRefused):
        await standing.check()
    by_ticket = SocketCaller("alice", authorise, "")
    assert await by_ticket.check() == "alice"
