"""What a node writes to a store by itself, over real HTTP."""

from __future__ import annotations

import socket

import pytest

from lattice.adapters.metricstore.onlywrite import OnlyWrite
from lattice.adapters.metricstore.writeurl import BadWriteUrl, checked_write_url
from lattice.domain.metricstore import SeriesPoints, StoreSilent, WriteRefused
from tests.fakes.remote_write import read
from tests.fakes.web import Answer, web

pytestmark = pytest.mark.timeout(180)
ONE = [SeriesPoints({"__name__": "lattice_a", "user": "alice"}, ((1.7e9, 1.5),))]


@pytest.mark.spec("TOP-2")
async def test_a_write_is_remote_write() -> None:
    with web({"/api/v1/write": Answer(status=204)}) as served:
        await OnlyWrite(served.url).write(ONE)
        await OnlyWrite(served.url).write([])
    (request,) = served.requests
    assert request.method == "POST"
    assert request.headers["content-encoding"] == "snappy"
    assert request.headers["x-prometheus-remote-write-version"] == "0.1.0"
    assert read(request.body) == [
        ([("__name__", "lattice_a"), ("user", "alice")], [(1_700_000_000_000, 1.5)])
    ]


@pytest.mark.parametrize("status", [301, 401, 404, 429, 500, 503])
async def test_what_says_nothing_of_the_points_is_tried_again(status: int) -> None:
    with (
        web({"*": Answer({"error": "some words"}, status)}) as served,
        pytest.raises(StoreSilent, match=f"{status}: some words"),
    ):
        await OnlyWrite(served.url).write(ONE)


async def test_points_refused_for_good_are_told_so() -> None:
    with (
        web({"*": Answer({"error": "out of order"}, 400)}) as served,
        pytest.raises(WriteRefused, match="out of order"),
    ):
        await OnlyWrite(served.url).write(ONE)


@pytest.mark.parametrize(
    "raw",
    [
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + b"x" * 0x20000,
        b"",
    ],
)
async def test_whoever_took_the_port_gets_no_further(raw: bytes) -> None:
    with web({"*": Answer(raw=raw)}) as served, pytest.raises(StoreSilent):
        await OnlyWrite(served.url).write(ONE)


async def test_one_that_hangs_or_is_not_there_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(StoreSilent, match=r"within 0\.05 s"):
            await OnlyWrite(url, write_s=0.05).write(ONE)
    with pytest.raises(StoreSilent):
        await OnlyWrite(url).write(ONE)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("http://127.0.0.1:8429", "http://127.0.0.1:8429/api/v1/write"),
        ("https://vm.example.com/", "https://vm.example.com/api/v1/write"),
        ("http://[::1]:8429/a/b?c=d", "http://[::1]:8429/a/b?c=d"),
    ],
)
def test_addresses(text: str, whole: str) -> None:
    assert checked_write_url(text) == whole


@pytest.mark.parametrize(
    "text",
    [
        "vmagent:8429",
        "ftp://a/b",
        "http://",
        "http://a:0/",
        "http://a:99999/",
        "http://[::1",
        "http://a/b c",
        "http://a/b\r\nX: y",
        "http://a/ü",
        "http://a/b#c",
        "http://u:p@a/",
        "http://u@a/",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadWriteUrl):
        checked_write_url(text)
