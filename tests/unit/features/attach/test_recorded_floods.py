"""Recorded terminals under load: what does not fit in a frame, and what comes all at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.domain.asciicast import CastKind
from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.domain.terminal import MOST_BYTES, Output, Stdin, write_message
from lattice.features.attach.model import Ended
from lattice.features.attach.node import recorded_terminal, recorder
from lattice.features.attach.node.chunk_files import ChunkFiles
from lattice.features.attach.service import recorded
from lattice.features.attach.service.recordings import Recordings
from tests.eventually import eventually_async
from tests.fakes.held_terminals import Holder
from tests.unit.features.attach.test_recorded import SESSION, Site, close_site, shown

NO_TEXT = random.Random(1).randbytes(LARGEST_MESSAGE_BYTES - 1)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    await close_site(made)


@pytest.mark.threat("recording-bypass")
async def test_a_message_that_can_not_be_compressed_is_recorded(site: Site) -> None:
    """A byte that is no text becomes six in its line, and a frame has at most 256 KiB."""
    client = await site.entered()
    await client.conduit.send(write_message(Stdin(NO_TEXT)))
    async with asyncio.timeout(20):
        assert await shown(client, len(NO_TEXT)) == NO_TEXT
    assert await site.recorded(CastKind.INPUT) == NO_TEXT
    assert await site.recorded(CastKind.OUTPUT) == NO_TEXT


async def test_input_is_no_faster_than_the_object_store(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is sent to a program that reads it at once."""

    swallowed: list[bytes] = []

    async def swallows(holder: Holder) -> None:
        while (message := await holder.conduit.receive()) is not None:
            swallowed.append(message)

    monkeypatch.setattr(Holder, "run", swallows)
    monkeypatch.setattr(recorder, "ROOM_BYTES", 128 * 1024)
    monkeypatch.setattr(recorder, "MOST_UNSTORED_BYTES", 1024 * 1024)
    client = site.client()
    client.dial(site.one)
    await client.opened()
    await eventually_async(lambda: SESSION in site.nodes.agent._open)
    terminal = site.nodes.agent._open[SESSION].recorder
    site.objects.away = True
    text, count = NO_TEXT[: 32 * 1024], 100

    async def send() -> None:
        for _ in range(count):
            await client.conduit.send(write_message(Stdin(text)))

    sending = asyncio.create_task(send())
    await eventually_async(lambda: terminal._unstored_bytes >= recorder.ROOM_BYTES)
    for _ in range(10):
        await asyncio.sleep(0.02)
        assert terminal._unstored_bytes < recorder.ROOM_BYTES + 2 * len(text)
    assert not sending.done()
    site.objects.away = False
    async with asyncio.timeout(60):
        await sending
    await eventually_async(lambda: len(swallowed) == count)
    await eventually_async(lambda: terminal._unstored_bytes == 0)
    assert await site.recorded(CastKind.INPUT) == text * count


@pytest.mark.parametrize("direction", ["_typed_event", "_shown_event"])
async def test_a_defect_of_the_recorder_ends_the_session(
    site: Site, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    def fails(_: object) -> None:
        raise RuntimeError("not foreseen")

    client = await site.entered()
    monkeypatch.setattr(recorded_terminal, direction, fails)
    await client.type(b"one")
    async with asyncio.timeout(10):
        await client.served()
    ended = client.line.words[-1]
    assert isinstance(ended, Ended)
    assert ended.words == "recording impossible: a defect of the recorder"


async def test_a_node_that_sends_chunks_without_end_is_cut_off(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "MOST_WAITING_BYTES", 1000)
    client = await site.entered()
    site.objects.away = True
    for _ in range(4):
        await client.conduit.send(write_message(Stdin(NO_TEXT[:500])))
    async with asyncio.timeout(10):
        await client.served()
    ended = client.line.words[-1]
    assert isinstance(ended, Ended)
    assert ended.words == "recording impossible: the node sends too much"


@pytest.mark.threat("recording-bypass")
async def test_output_that_gathers_behind_a_slow_disk_is_recorded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await site.entered()
    append = ChunkFiles.append

    def slow(files: ChunkFiles, number: int, chunk: bytes) -> None:
        time.sleep(0.05)
        append(files, number, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(ChunkFiles, "append", slow)
        for at in range(0, len(NO_TEXT), MOST_BYTES):
            output = Output(NO_TEXT[at : at + MOST_BYTES])
            await site.nodes.holders[SESSION].conduit.send(write_message(output))
        async with asyncio.timeout(20):
            assert await shown(client, len(NO_TEXT)) == NO_TEXT
    assert await site.recorded(CastKind.OUTPUT) == NO_TEXT
    entry = next(iter(await Recordings(site.state).all_open())).entry
    sizes = [len(chunk) async for _, chunk in site.store.chunks(entry.path)]
    assert max(sizes) < LARGEST_MESSAGE_BYTES
