"""Recordings whose session is over: which those are, and what becomes of what the node has."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.asciicast import CastKind
from lattice.domain.audit import AuditAct
from lattice.domain.stream import Carrier, StreamQuestion
from lattice.features.attach.model import Start
from lattice.features.attach.node import leftovers
from lattice.features.attach.node.chunk_files import durable_chunks, remove_abandoned
from lattice.features.attach.service import recording_closer
from lattice.features.attach.service.recorded import TerminalRecording
from lattice.features.attach.service.recordings import Recordings, beginning
from lattice.features.attach.service.records import SessionRecord, SessionRecords
from tests.eventually import eventually_async
from tests.fakes.attached import ALICE
from tests.fakes.held_terminals import joined
from tests.unit.features.attach.test_recorded import SESSION, Site, close_site, on_disk, shown


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    await close_site(made)


async def test_a_session_that_begins_while_ended_ones_are_looked_for_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = site.client()
    listed = SessionRecords.all_open

    async def begins_after(records: SessionRecords) -> tuple[SessionRecord, ...]:
        found = await listed(records)
        if not client.line.words:
            client.dial(site.one)
            await client.opened()
        return found

    monkeypatch.setattr(SessionRecords, "all_open", begins_after)
    async with asyncio.timeout(10):
        await site.closer.close_all()
        await client.read()
        await client.type(b"one")
        assert await shown(client, 3) == b"one"
    assert site.acts(AuditAct.ATTACH_END) == []


async def test_nodes_that_do_not_answer_are_waited_for_together(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = TerminalRecording(
        site.sensitive, Recordings(site.state), site.clock, site.store, site.keys
    )
    for number in range(recording_closer.AT_ONCE):
        job = replace(site.job, id=str(number + 10), job_id=number + 10)
        entry = await recording.beginning(ALICE, job, "n1", Start(session=f"{number:032x}"))
        assert entry is not None
        await site.state.commit(*beginning(entry))
    asked: set[str] = set()
    every = asyncio.Event()

    @asynccontextmanager
    async def silent(question: StreamQuestion) -> AsyncIterator[Carrier]:
        asked.add(question.session)
        if len(asked) == recording_closer.AT_ONCE:
            every.set()
        await every.wait()
        if asked:
            raise Unavailable("The node does not answer.")
        yield joined()[0]

    monkeypatch.setattr(site.nodes, "open", silent)
    async with asyncio.timeout(10):
        await site.closer.close_all()
    assert len(asked) == recording_closer.AT_ONCE


async def _left_on_the_node(site: Site) -> None:
    """What was typed last is durable on the node alone, and the session is over."""
    client = await site.entered()
    await client.type(b"one")
    await shown(client, 3)
    site.objects.away = True
    await client.type(b"two")
    await eventually_async(lambda: b"two" in on_disk(site))
    await site.nodes.kill_agent()
    await client.served()
    site.objects.away = False
    client.dial(site.two)
    await client.served()


@pytest.mark.threat("recording-bypass")
async def test_chunks_that_the_node_can_not_read_are_asked_for_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _left_on_the_node(site)

    def fails(_: Path) -> Iterator[bytes]:
        yield from ()
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(leftovers, "durable_chunks", fails)
        await site.closer.close_all()
    assert site.acts(AuditAct.ATTACH_END) == []
    assert (site.nodes.folder / SESSION).exists()
    await site.closer.close_all()
    assert await site.recorded(CastKind.INPUT) == b"onetwo"


@pytest.mark.threat("recording-bypass")
async def test_the_node_keeps_what_the_bucket_does_not_take(site: Site) -> None:
    await _left_on_the_node(site)
    entry = await Recordings(site.state).of(SESSION)
    last = await site.store.last(entry.path)
    assert last is not None
    await site.objects.delete(entry.path.key(last[0]))
    chunks = list(durable_chunks(site.nodes.folder / SESSION))
    (site.nodes.folder / SESSION / "part.0").write_bytes(
        b"".join(struct.pack("<I", len(each)) + each for each in chunks[last[0] + 1 :])
    )
    await site.closer.close_all()
    assert site.acts(AuditAct.ATTACH_END) == []
    assert (site.nodes.folder / SESSION).exists()


async def test_a_foreign_object_delays_no_other_recording(site: Site) -> None:
    await _left_on_the_node(site)
    recording = TerminalRecording(
        site.sensitive, Recordings(site.state), site.clock, site.store, site.keys
    )
    other = replace(site.job, id="2", job_id=2)
    bad = await recording.beginning(ALICE, other, "n1", Start(session="0" * 32))
    assert bad is not None
    await site.state.commit(*beginning(bad))
    await site.objects.put(bad.path.key(7), b"no chunk")
    await site.objects.put(f"{bad.path.prefix}/readme", b"no chunk")
    await site.closer.close_all()
    assert len(site.acts(AuditAct.ATTACH_END)) == 1
    assert site.closer.failures_total == 1


async def test_what_no_server_asks_for_is_removed_from_the_node_after_a_month(site: Site) -> None:
    now_s = site.clock.now().timestamp()
    for name, days in (("old", 31), ("young", 29)):
        folder = site.nodes.folder / name
        folder.mkdir(parents=True)
        (folder / "part.0").write_bytes(b"chunk")
        for each in (folder / "part.0", folder):
            os.utime(each, (now_s - days * 86_400,) * 2)
    await site.entered()
    assert sorted(each.name for each in site.nodes.folder.iterdir()) == sorted([SESSION, "young"])
    later_s = now_s + 32 * 86_400
    assert remove_abandoned(site.nodes.folder, later_s, {SESSION}) == ("young",)
    assert (site.nodes.folder / SESSION).exists(), "it still goes on"
