"""The HTTP under `SlurmRest`, on real sockets, against a server that says exactly these bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lattice.adapters.slurm.http_client import BadSlurmReply, HttpExchange, RestReply, TooLarge

CHUNKED = b"HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Teller:
    """Answers each question with the next text; None closes the connection instead."""

    def __init__(self, *texts: bytes | None, then_close: bool = False) -> None:
        self.texts = list(texts)
        self.then_close = then_close
        self.connections = 0
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.asked.append(await reader.readuntil(b"\r\n\r\n"))
                text = self.texts.pop(0)
                if text is None:
                    return
                writer.write(text)
                await writer.drain()
                if self.then_close:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def telling(path: Path, teller: Teller) -> AsyncIterator[HttpExchange]:
    server = await asyncio.start_unix_server(teller.serve, path)
    exchange = HttpExchange(lambda: asyncio.open_unix_connection(str(path)), "slurmrestd")
    async with server:
        yield exchange
        await exchange.aclose()


async def ask(exchange: HttpExchange, limit_bytes: int = 10_000) -> RestReply:
    async with asyncio.timeout(60):
        return await exchange.get("/it?a=b", {"Accept": "application/json"}, limit_bytes)


async def test_the_question_as_it_goes_out(tmp_path: Path) -> None:
    teller = Teller(OK)
    async with telling(tmp_path / "s", teller) as exchange:
        assert await ask(exchange) == RestReply(200, b"hi")
    assert teller.asked == [
        b"GET /it?a=b HTTP/1.1\r\nHost: slurmrestd\r\nAccept: application/json\r\n\r\n"
    ]


async def test_one_connection_serves_many_questions(tmp_path: Path) -> None:
    nothing = b"HTTP/1.1 304 NOT MODIFIED\r\n\r\n"
    teller = Teller(OK, nothing, nothing, OK)
    async with telling(tmp_path / "s", teller) as exchange:
        replies = [await ask(exchange) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 304, 304, 200]
    assert teller.connections == 1


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: Close\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    ],
)
async def test_a_connection_that_is_to_end_is_not_kept(tmp_path: Path, text: bytes) -> None:
    teller = Teller(text, text)
    async with telling(tmp_path / "s", teller) as exchange:
        assert (await ask(exchange)).body == (await ask(exchange)).body == b"hi"
    assert teller.connections == 2


async def test_a_kept_connection_gone_stale_is_replaced_unseen(tmp_path: Path) -> None:
    teller = Teller(OK, OK, OK, then_close=True)
    async with telling(tmp_path / "s", teller) as exchange:
        for _ in range(3):
            assert (await ask(exchange)).body == b"hi"
            await asyncio.sleep(0.01)
    assert teller.connections == 3


async def test_a_new_connection_that_is_closed_is_not_tried_for_ever(tmp_path: Path) -> None:
    teller = Teller(None, OK)
    async with telling(tmp_path / "s", teller) as exchange:
        with pytest.raises(BadSlurmReply):
            await ask(exchange)
        assert (await ask(exchange)).body == b"hi"


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", b"hi"),
        (
            CHUNKED + b"1;x=y\r\nh\r\n1\r\ni\r\n0\r\nA: b\r\n\r\n",
            b"hi",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"hi"),
        (b"HTTP/1.1 500 ERR\r\ncontent-length:0\r\n\r\n", b""),
    ],
)
async def test_every_way_a_body_can_come(tmp_path: Path, text: bytes, body: bytes) -> None:
    teller = Teller(text, OK)
    async with telling(tmp_path / "s", teller) as exchange:
        assert (await ask(exchange)).body == body
        assert (await ask(exchange)).body == b"hi"
    assert teller.connections == 1


async def test_a_body_that_ends_with_the_connection(tmp_path: Path) -> None:
    teller = Teller(b"HTTP/1.1 200 OK\r\n\r\nall of it", then_close=True)
    async with telling(tmp_path / "s", teller) as exchange:
        assert (await ask(exchange)).body == b"all of it"


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n0123456789",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: y",
    ],
)
async def test_what_is_no_answer_is_an_error_and_the_connection_not_kept(
    tmp_path: Path, text: bytes
) -> None:
    teller = Teller(text, OK, then_close=True)
    async with telling(tmp_path / "s", teller) as exchange:
        with pytest.raises(OSError, match=r"."):
            await ask(exchange)
        assert (await ask(exchange)).body == b"hi"
    assert teller.connections == 2


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20001\r\n\r\n" + b"x" * 20_001,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4e21\r\n" + b"x" * 20_001,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 20_001,
    ],
)
async def test_a_body_beyond_the_limit_is_not_read_to_its_end(tmp_path: Path, text: bytes) -> None:
    async with telling(tmp_path / "s", Teller(text, then_close=True)) as exchange:
        with pytest.raises(TooLarge):
            await ask(exchange)


async def test_questions_at_once_have_a_connection_each_and_few_are_kept(tmp_path: Path) -> None:
    teller = Teller(*[OK] * 40)
    async with telling(tmp_path / "s", teller) as exchange:
        await asyncio.gather(*(ask(exchange) for _ in range(20)))
        first = teller.connections
        await asyncio.gather(*(ask(exchange) for _ in range(4)))
        assert first == 20
        assert teller.connections == 20
