"""How a store's refusals and silences are told apart, over a spoken HTTP."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from lattice.adapters.http_store import HttpAddress
from lattice.adapters.metricstore.store import HttpMetricStore
from lattice.base.errors import ConfigurationError
from lattice.domain.metricstore import BadQuery, SeriesPoints, StoreSilent, WriteRefused
from tests.fakes.manual_clock import ManualClock

ONE = [SeriesPoints({"__name__": "lattice_a"}, ((1.7e9, 1.0),))]
NOTHING = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


class Spoken:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, status: int = 200, body: bytes = NOTHING) -> None:
        self.status = status
        self.body = body
        self.hangs = False
        self.asked: list[httpx2.Request] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        if self.hangs:
            await asyncio.Event().wait()
        # As from a socket: the bytes are read by the client.
        return httpx2.Response(self.status, stream=httpx2.ByteStream(self.body))


def store_of(
    spoken: Callable[..., object], clock: ManualClock | None = None, **place: object
) -> HttpMetricStore:
    return HttpMetricStore(
        HttpAddress(url="http://store:8428/", **place),  # type: ignore[arg-type]
        clock or ManualClock(),
        write_s=0.02,
        transport=httpx2.MockTransport(spoken),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("status", [400, 409, 413, 422])
async def test_points_refused_for_good_are_told_so(status: int) -> None:
    with pytest.raises(WriteRefused, match="out of order"):
        await store_of(Spoken(status, b"out of order sample")).write(ONE)


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 408, 429, 500, 502, 503])
async def test_what_says_nothing_of_the_points_is_tried_again(status: int) -> None:
    with pytest.raises(StoreSilent, match=str(status)):
        await store_of(Spoken(status, b"some words")).write(ONE)


@pytest.mark.parametrize("status", [400, 422])
async def test_a_bad_query_has_the_stores_own_words(status: int) -> None:
    words = b'{"status":"error","errorType":"bad_data","error":"unclosed \\u001b[31mbraces"}'
    with pytest.raises(BadQuery, match="unclosed") as told:
        await store_of(Spoken(status, words)).query("a{", at=1.0)
    assert "\x1b" not in str(told.value)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_a_query_that_was_not_judged_is_a_silence(status: int) -> None:
    with pytest.raises(StoreSilent):
        await store_of(Spoken(status, b"{}")).query("a", at=1.0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"data":{"result":{}}}',
        b'{"data":{"result":[{"metric":{"a":1},"value":[1,"2"]}]}}',
        b'{"data":{"result":[{"metric":{},"value":[1,"two"]}]}}',
        b'{"data":{"result":[{"metric":{},"value":["x","2"]}]}}',
        b"[" * 100_000,
    ],
)
@pytest.mark.spec("SRC-2")
async def test_garbage_is_never_a_number(body: bytes) -> None:
    with pytest.raises(StoreSilent):
        await store_of(Spoken(body=body)).query("a", at=1.0)
    if body != b'{"data":{"result":{}}}':
        with pytest.raises(StoreSilent):
            await store_of(Spoken(body=body)).series("a", start=0, end=1)


async def test_a_scalar_is_one_point_without_labels() -> None:
    body = b'{"status":"success","data":{"resultType":"scalar","result":[12.5,"3"]}}'
    (found,) = await store_of(Spoken(body=body)).query("3", at=12.5)
    assert (found.labels, found.points) == ({}, ((12.5, 3.0),))


async def test_of_a_hanging_store_not_everybody_waits() -> None:
    clock, spoken = ManualClock(), Spoken()
    store = store_of(spoken, clock)
    spoken.hangs = True
    with pytest.raises(StoreSilent, match="within"):
        await store.write(ONE)
    for _ in range(5):
        with pytest.raises(StoreSilent, match="within"):
            await store.write(ONE)
    assert len(spoken.asked) == 1
    # Questions are not writes: nobody has waited for one yet.
    spoken.hangs = False
    assert await store.query("a", at=1.0) == ()
    with pytest.raises(StoreSilent):
        await store.write(ONE)
    clock.advance(4.0)
    await store.write(ONE)
    await store.write(ONE)
    assert len(spoken.asked) == 4


async def test_while_one_tries_the_others_do_not() -> None:
    clock, spoken = ManualClock(), Spoken()
    store = store_of(spoken, clock)
    spoken.hangs = True
    with pytest.raises(StoreSilent):
        await store.write(ONE)
    clock.advance(4.0)
    ends = await asyncio.gather(*(store.write(ONE) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(each, StoreSilent) for each in ends)
    assert len(spoken.asked) == 2


async def test_one_heavy_question_does_not_silence_the_others() -> None:
    spoken = Spoken()
    store = store_of(spoken)
    spoken.hangs = True
    with pytest.raises(StoreSilent):
        await store.query("heavy", at=1.0, within_s=0.01)
    spoken.hangs = False
    assert await store.query("light", at=1.0) == ()


@pytest.mark.spec("TOP-4")
async def test_a_write_says_how_it_is_packed_and_who_writes(tmp_path: Path) -> None:
    password, bearer = tmp_path / "password", tmp_path / "bearer"
    password.write_text("s3cret\n")
    bearer.write_text("token-1\n")
    spoken = Spoken()
    await store_of(spoken, username="lattice", password_file=password).write(ONE)
    await store_of(spoken, bearer_file=bearer).write(ONE)
    bearer.write_text("token-2\n")
    await store_of(spoken, bearer_file=bearer).query("a", at=1.0)
    first, second, third = spoken.asked
    assert str(first.url) == "http://store:8428/api/v1/write"
    assert first.headers["Content-Encoding"] == "snappy"
    assert first.headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"
    word = base64.b64encode(b"lattice:s3cret").decode()
    assert first.headers["Authorization"] == f"Basic {word}"
    assert second.headers["Authorization"] == "Bearer token-1"
    assert third.headers["Authorization"] == "Bearer token-2"
    bearer.unlink()
    with pytest.raises(StoreSilent, match="secret"):
        await store_of(spoken, bearer_file=bearer).write(ONE)


def test_authorities_that_are_none_are_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigurationError, match=r"telemetry\.ca|authorities"):
        store_of(Spoken(), ca=tmp_path / "ca.pem")
