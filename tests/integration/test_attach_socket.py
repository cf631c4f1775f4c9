"""The WebSocket of a terminal as the network sees it: real sockets, wrong and right requests."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from lattice.base.clock import SystemClock
from lattice.domain.stream import CarrierLost
from lattice.domain.terminal import Output, Started, Stdin, read_message, write_message
from lattice.features.attach.model import PROTOCOL, TICKET_PREFIX, Start, write_word
from lattice.server.config.api_section import ApiSection
from lattice.server.listeners.bounded_http import HttpBounds
from lattice.server.listeners.composition import Faces
from lattice.server.listeners.listeners import RestServer, rest_config
from lattice.wire.conduit import Conduit
from tests.fakes.cluster import populated
from tests.fakes.held_terminals import HeldTerminals
from tests.fakes.server import bearer, composed, token

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

PAGE = "https://lattice.example.org"


def alice() -> dict[str, str]:
    """Drawn when it is needed: a gate lasts longer than a token."""
    return bearer("alice-1", preferred_username="alice")


class Site:
    def __init__(self, port: int, faces: Faces, terminals: HeldTerminals) -> None:
        self.port = port
        self.faces = faces
        self.terminals = terminals

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def dialled(
        self,
        name: str = "1",
        *,
        headers: Mapping[str, str] | None = None,
        protocols: tuple[str, ...] = (PROTOCOL,),
        origin: str | None = None,
        prefix: str = "/v1",
        query: str = "",
    ) -> AsyncIterator[ClientConnection]:
        given: dict[str, str] = dict(alice() if headers is None else headers)
        if origin is not None:
            given["Origin"] = origin
        async with connect(
            f"ws://{self.authority}{prefix}/allocations/{name}/attach{query}",
            additional_headers=given,
            subprotocols=[Subprotocol(each) for each in protocols] or None,
            compression="deflate",
            proxy=None,
            max_size=None,
        ) as line:
            yield line

    async def refused(self, **how: Any) -> tuple[int, Any]:
        with pytest.raises(InvalidStatus) as refused:
            async with self.dialled(**how):
                pass
        answer = refused.value.response
        # A path that is not there is refused without a body: nothing that a page could frame.
        assert not answer.body or "frame-ancestors" in answer.headers["Content-Security-Policy"]
        return answer.status_code, json.loads(answer.body or b"{}")

    async def ticket(self, name: str = "1") -> str:
        async with httpx2.AsyncClient() as http:
            answer = await http.post(
                f"http://{self.authority}/v1/allocations/{name}/attach/tickets", headers=alice()
            )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["ticket"])


@pytest.fixture
def site(server: Site) -> Site:
    """The one server, with nothing asked of its nodes yet."""
    server.terminals.asked.clear()
    server.terminals.holders.clear()
    return server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Site]:
    clock = SystemClock()
    terminals = HeldTerminals(clock, "n1")
    faces = composed(populated(clock), terminals=terminals, origins=(PAGE,))
    with socket.create_server(("127.0.0.1", 0)) as door:
        rest = RestServer(rest_config(ApiSection(shutdown_grace_s=1), faces), HttpBounds())
        serving = asyncio.create_task(rest.serve(sockets=[door]))
        while not rest.started:
            await asyncio.sleep(0.01)
        yield Site(door.getsockname()[1], faces, terminals)
        rest.should_exit = True
        await serving
    await terminals.aclose()


class _SocketCarrier:
    def __init__(self, line: ClientConnection) -> None:
        self._line = line
        self.words: list[Any] = []

    async def send(self, frame: bytes) -> None:
        try:
            await self._line.send(frame)
        except ConnectionClosed as closed:
            raise CarrierLost(str(closed)) from None

    async def receive(self) -> bytes:
        while True:
            try:
                message = await self._line.recv()
            except ConnectionClosed as closed:
                raise CarrierLost(str(closed)) from None
            if isinstance(message, bytes):
                return message
            self.words.append(json.loads(message))


async def begun(line: ClientConnection) -> Any:
    await line.send(write_word(Start(session=secrets.token_hex(16), terminal="xterm")))
    return json.loads(await line.recv())


@pytest.mark.spec("ATTACH-8")
@pytest.mark.parametrize("prefix", ["/v1", "/api/v1"])
async def test_a_terminal_over_a_real_socket(site: Site, prefix: str) -> None:
    async with site.dialled(prefix=prefix) as line:
        assert line.subprotocol == PROTOCOL
        assert not line.protocol.extensions, "what is typed must not be guessed from its size"
        assert (await begun(line))["type"] == "opened"
        conduit = Conduit()
        carrying = asyncio.create_task(conduit.carry(_SocketCarrier(line)))
        payload = await conduit.receive()
        assert payload is not None
        assert isinstance(read_message(payload), Started)
        pasted = os.urandom(32 * 1024)
        for _ in range(32):
            await conduit.send(write_message(Stdin(pasted)))
            back = await conduit.receive()
            assert back is not None
            assert read_message(back) == Output(pasted)
        carrying.cancel()
        with suppress(asyncio.CancelledError):
            await carrying


@pytest.mark.story
@pytest.mark.spec("ATTACH-8", "AUTH-5")
async def test_who_calls_is_known_before_the_upgrade(site: Site) -> None:
    assert (await site.refused(headers={}))[0] == 401
    forged = {"Authorization": "Bearer " + token("alice-1")[:-4] + "AAAA"}
    assert (await site.refused(headers=forged))[0] == 401
    readonly = bearer("eve", preferred_username="alice", scope="readonly")
    assert (await site.refused(headers=readonly))[0] == 403
    reads = bearer("eve", preferred_username="alice", scope="allocations:read")
    assert (await site.refused(headers=reads))[0] == 403
    assert (await site.refused(protocols=()))[0] == 400
    assert (await site.refused(protocols=("chat",)))[0] == 400
    assert (await site.refused(name="..%2f1"))[0] in {403, 404}
    assert (await site.refused(headers={}, query="?access_token=" + token("alice-1")))[0] == 401
    assert not site.terminals.asked


@pytest.mark.story
@pytest.mark.spec("ATTACH-8")
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "https://lattice.example.org.evil.example",
        "https://sub.lattice.example.org",
        "https://lattice.example.org:8443",
        "http://lattice.example.org",
        "https://LATTICE.example.org",
        "https://lattice.example.org/",
        "file://",
    ],
)
async def test_a_page_of_another_origin_is_refused_before_the_upgrade(
    site: Site, origin: str
) -> None:
    """Attack 7, with a token and a cookie that would both be good."""
    ticket = await site.ticket()
    cookie = {**alice(), "Cookie": f"token={token('alice-1')}"}
    how = {"origin": origin, "headers": cookie}
    assert (await site.refused(**how))[0] == 403
    assert (await site.refused(**how, protocols=(PROTOCOL, TICKET_PREFIX + ticket)))[0] == 403


@pytest.mark.spec("ATTACH-8")
async def test_a_page_needs_a_ticket_and_no_cookie_or_token_stands_for_it(site: Site) -> None:
    cookie = {**alice(), "Cookie": f"token={token('alice-1')}"}
    assert (await site.refused(origin=PAGE, headers=cookie))[0] == 401
    without = {"Cookie": f"token={token('alice-1')}"}
    assert (await site.refused(headers=without))[0] == 401
    protocols = (PROTOCOL, TICKET_PREFIX + await site.ticket())
    assert (await site.refused(headers={}, protocols=protocols))[0] == 401, "no page, no ticket"


@pytest.mark.story
@pytest.mark.spec("ATTACH-8")
async def test_a_ticket_opens_one_terminal_once(site: Site) -> None:
    """Attack 8."""
    ticket = await site.ticket()
    protocols = (PROTOCOL, TICKET_PREFIX + ticket)
    async with site.dialled(origin=PAGE, headers={}, protocols=protocols) as line:
        assert line.subprotocol == PROTOCOL, "the ticket is not sent back"
        assert (await begun(line))["type"] == "opened"
    status, body = await site.refused(origin=PAGE, headers={}, protocols=protocols)
    assert status == 401
    other = (PROTOCOL, TICKET_PREFIX + await site.ticket("5"))
    again, words = await site.refused(origin=PAGE, headers={}, protocols=other)
    assert again == 401
    assert words["error"]["message"] == body["error"]["message"]


@pytest.mark.spec("ATTACH-8", "AUTH-12")
async def test_a_ticket_for_anothers_job_is_not_given(site: Site) -> None:
    async with httpx2.AsyncClient() as http:
        root = f"http://{site.authority}/v1/allocations"
        bob = bearer("bob-1", preferred_username="bob")
        told = [
            await http.post(f"{root}/{name}/attach/tickets", headers=bob) for name in ("1", "999")
        ]
        foreign = await http.post(
            f"{root}/1/attach/tickets", headers={**alice(), "Sec-Fetch-Site": "cross-site"}
        )
    assert [each.status_code for each in told] == [404, 404]
    assert foreign.status_code == 403


@pytest.mark.spec("AUTH-12")
async def test_anothers_job_over_the_socket_is_not_there(site: Site) -> None:
    """Attack 1: the same words, in the same order, for what is not hers and what is not there."""
    bob = bearer("bob-1", preferred_username="bob")
    told = []
    for name in ("1", "999"):
        async with site.dialled(name, headers=bob) as line:
            word = await begun(line)
            with pytest.raises(ConnectionClosed) as closed:
                await line.recv()
        assert closed.value.rcvd is not None
        told.append((str(word).replace(name, "N"), closed.value.rcvd.code))
    assert told[0] == told[1]
    assert "'code': 'not_found'" in told[0][0]


@pytest.mark.spec("ATTACH-8")
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_a_plain_request_runs_nothing(site: Site, method: str) -> None:
    """Attack 9: a command in the address, without an upgrade."""
    async with httpx2.AsyncClient() as http:
        answer = await http.request(
            method,
            f"http://{site.authority}/v1/allocations/1/attach?command=id&stdin=true",
            headers=alice(),
        )
    assert answer.status_code == 405
    assert not site.terminals.asked


@pytest.mark.spec("ATTACH-8")
async def test_a_command_in_the_address_of_a_socket_is_not_looked_at(site: Site) -> None:
    async with site.dialled(query="?command=id") as line:
        await begun(line)
    (holder,) = site.terminals.holders.values()
    assert holder.question.argv == ()


def _upgrade(path: str, *lines: str, method: str = "GET") -> bytes:
    head = [
        f"{method} {path} HTTP/1.1",
        "Host: x",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        *lines,
    ]
    return "\r\n".join([*head, "", ""]).encode()


async def _answered(port: int, sent: bytes) -> bytes:
    """Everything that comes back until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        await writer.drain()
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                return await reader.read()
        return b""
    finally:
        writer.close()


@pytest.mark.spec("ATTACH-8")
@pytest.mark.parametrize(
    "first",
    [
        _upgrade("/v1/allocations/1/attach", f"Sec-WebSocket-Protocol: {PROTOCOL}"),
        _upgrade("/v1/allocations/1/attach", "Origin: https://evil.example"),
        _upgrade("/v1/healthz"),
        _upgrade("/v1/allocations/1/attach").replace(b"Version: 13", b"Version: 12"),
        _upgrade("/v1/allocations/1/attach", method="POST"),
    ],
)
async def test_nothing_is_served_behind_a_failed_upgrade(site: Site, first: bytes) -> None:
    """Attack 10: a second request on the same connection, sent along or after."""
    second = b"GET /v1/allocations HTTP/1.1\r\nHost: x\r\nAuthorization: "
    second += alice()["Authorization"].encode() + b"\r\n\r\n"
    answer = await _answered(site.port, first + second)
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert not answer.startswith(b"HTTP/1.1 101")
    assert not answer.startswith(b"HTTP/1.1 2")
    assert b"work-1" not in answer


def _frame(opcode: int, length: int, *, wide: bool = False) -> bytes:
    head = bytes((0x80 | opcode,))
    if wide or length > 0xFFFF:
        return head + b"\xff" + struct.pack("!Q", length) + b"\0\0\0\0"
    return head + b"\xfe" + struct.pack("!H", length) + b"\0\0\0\0"


@pytest.mark.parametrize("length", [4 * 2**30, 2**62, 96 * 1024 + 1])
async def test_a_huge_frame_is_refused_by_its_length(site: Site, length: int) -> None:
    """Attack 24: nothing of the four gigabytes is waited for, or kept."""
    asked = _upgrade(
        "/v1/allocations/1/attach",
        f"Sec-WebSocket-Protocol: {PROTOCOL}",
        f"Authorization: {alice()['Authorization']}",
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(asked)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    before = _resident_bytes()
    writer.write(_frame(2, length))
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    assert answer[:1] == b"\x88"
    assert struct.unpack("!H", answer[2:4]) == (1009,)
    assert _resident_bytes() - before < 16 * 2**20


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_message_in_endless_pieces_is_refused_too(site: Site) -> None:
    async with site.dialled() as line:

        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 8192

        with pytest.raises(ConnectionClosed):
            await line.send(pieces())
        assert line.close_code == 1009


@pytest.mark.spec("ATTACH-2")
async def test_who_says_nothing_first_is_let_go(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.features.attach.service.session.START_S", 0.2)
    async with site.dialled() as line:
        word = json.loads(await line.recv())
        assert word["code"] == "usage"
        with pytest.raises(ConnectionClosed):
            await line.recv()
