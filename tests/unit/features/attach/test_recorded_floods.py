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
from lattice.features.attach.node.chunk_files import ChunkFiles
from lattice.features.attach.service.recordings import Recordings
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


@pytest.mark.threat("recording-bypass")
async def test_output_that_gathers_behind_a_slow_disk_is_recorded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await site.entered()
    append = ChunkFiles.append

    def slow(files: ChunkFiles, number: int, chunk: bytes) -> None:
        time.sleep(0.2)
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
