"""Events to one reader: in order, with signs of life, and an end in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lattice.base.errors import PermissionRefused, Unavailable
from lattice.features.locks.service import ChangeSignal
from lattice.features.logs.model import LogNote, NoteKind
from lattice.wire import events
from lattice.wire.events import EventStream
from tests.fakes.shell import NOW

Told = AsyncIterator[tuple[LogNote, str]]


class Reader:
    """Who is sent to; reads nothing unless `free`."""

    def __init__(self) -> None:
        self.text = b""
        self.over = False
        self.free = asyncio.Event()
        self.free.set()
        self.defects: list[BaseException] = []
        self.checks = 0
        self.welcome = True
        self.unknown_checks = 0

    async def send(self, message: Any) -> None:
        await asyncio.sleep(0)
        await self.free.wait()
        self.text += message.get("body", b"")
        self.over |= message["type"] == "http.response.body" and not message["more_body"]

    async def recheck(self) -> None:
        self.checks += 1
        if self.checks <= self.unknown_checks:
            raise Unavailable("Nobody knows.")
        if not self.welcome:
            raise PermissionRefused("Not any more.")

    async def reads(self, told: Told) -> None:
        stream = EventStream(told, "r-1", self.recheck, self.defects.append)
        async with asyncio.timeout(60):
            await stream.stream_response(self.send)


def note(words: str) -> tuple[LogNote, str]:
    return LogNote(kind=NoteKind.ALIVE, time=NOW, words=words), words


async def test_records_then_the_end() -> None:
    async def told() -> Told:
        yield note("a")
        yield note("b")

    reader = Reader()
    await reader.reads(told())
    assert reader.text.index(b"id: a") < reader.text.index(b"id: b")
    assert reader.text.endswith(b"event: end\ndata: {}\n\n")
    assert reader.over


async def test_an_error_is_said_behind_what_came_before() -> None:
    async def told() -> Told:
        yield note("a")
        raise PermissionRefused("Enough.")

    reader = Reader()
    await reader.reads(told())
    assert b"id: a" in reader.text
    assert b"event: error" in reader.text
    assert b"Enough." in reader.text
    assert b"event: end" not in reader.text
    assert reader.over


async def test_a_defect_is_reported_and_not_shown() -> None:
    async def told() -> Told:
        yield note("a")
        raise RuntimeError("a secret")

    reader = Reader()
    await reader.reads(told())
    assert b"secret" not in reader.text
    assert b"event: error" in reader.text
    assert [str(each) for each in reader.defects] == ["a secret"]


async def test_silence_has_signs_of_life_and_ends_when_it_may_not_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "KEEPALIVE_EVERY_S", 0.01)
    monkeypatch.setattr(events, "RECHECK_EVERY_S", 0.03)
    reader, closed = Reader(), asyncio.Event()

    async def told() -> Told:
        try:
            yield note("a")
            await asyncio.Event().wait()
        finally:
            closed.set()

    reading = asyncio.create_task(reader.reads(told()))
    while reader.checks < 2 or reader.text.count(b": alive") < 2:
        await asyncio.sleep(0)
    reader.welcome = False
    await reading
    assert b"Not any more." in reader.text
    assert closed.is_set(), "whoever made the records is let go"


async def test_who_makes_records_waits_for_a_reader_that_is_slow() -> None:
    reader, made = Reader(), 0

    async def told() -> Told:
        nonlocal made
        for number in range(100):
            made += 1
            yield note(str(number))

    reading = asyncio.create_task(reader.reads(told()))
    while made < 1:
        await asyncio.sleep(0)
    reader.free.clear()
    for _ in range(20):
        await asyncio.sleep(0)
    held = made
    for _ in range(20):
        await asyncio.sleep(0)
    assert made == held < 100
    reader.free.set()
    await reading
    assert reader.text.count(b"event: note") == 100


@pytest.mark.spec("AUTH-13")
async def test_a_reader_is_checked_again_as_soon_as_something_is_locked() -> None:
    locked = ChangeSignal()

    async def told() -> Told:
        yield note("a")
        reader.welcome = False
        locked.fire()
        await asyncio.Event().wait()

    reader = Reader()
    stream = EventStream(told(), "r-1", reader.recheck, reader.defects.append, locked.next)
    async with asyncio.timeout(60):
        await stream.stream_response(reader.send)
    assert b"event: error" in reader.text
    assert b"Not any more." in reader.text


@pytest.mark.spec("AUTH-13", "OPS-1")
async def test_a_reader_who_can_not_be_checked_now_stays_until_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("KEEPALIVE_EVERY_S", "RECHECK_EVERY_S"):
        monkeypatch.setattr(events, name, 0.01)

    async def told() -> Told:
        yield note("a")
        await asyncio.Event().wait()

    reader = Reader()
    reader.unknown_checks, reader.welcome = 3, False
    await reader.reads(told())
    assert reader.checks == 4
    assert b"Nobody knows." not in reader.text
    assert b"Not any more." in reader.text


@pytest.mark.spec("AUTH-13")
async def test_a_reader_who_reads_nothing_is_checked_too_and_put_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("KEEPALIVE_EVERY_S", "RECHECK_EVERY_S", "_LAST_WORD_S"):
        monkeypatch.setattr(events, name, 0.01)

    async def told() -> Told:
        reader.free.clear()
        while True:
            yield note("a")

    reader = Reader()
    reader.welcome = False
    await reader.reads(told())
    assert reader.checks == 1
    assert not reader.over


async def test_a_large_record_is_sent_in_parts() -> None:
    async def told() -> Told:
        yield note("x" * 300_000)

    sizes: list[int] = []

    async def send(message: Any) -> None:
        sizes.append(len(message.get("body", b"")))

    async def fine() -> None:
        pass

    await EventStream(told(), "r-1", fine, lambda _: None).stream_response(send)
    assert max(sizes) == 64 * 1024
    assert sum(sizes) > 600_000


async def test_the_records_end_when_the_reader_leaves() -> None:
    closed, gone = asyncio.Event(), asyncio.Event()

    async def told() -> Told:
        try:
            yield note("a")
            gone.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    reader = Reader()
    stream = EventStream(told(), "r-1", reader.recheck, reader.defects.append)
    async with asyncio.timeout(60):
        await stream({"type": "http"}, receive, reader.send)
    assert closed.is_set()
    assert b"event: end" not in reader.text
    assert not reader.defects
