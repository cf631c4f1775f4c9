"""Recorded terminals: nothing is seen that is not recorded, or there is no session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lattice.access.allocation_finder import AllocationFinder
from lattice.access.sensitive_acts import SensitiveActs
from lattice.base.clock import SystemClock
from lattice.base.errors import Conflict, LatticeError, PermissionRefused, Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.asciicast import CastKind
from lattice.domain.audit import AuditAct
from lattice.domain.pipe import FrameKind
from lattice.domain.recording import (
    Anchor,
    ChunkText,
    RecordingName,
    RecordingVerifier,
    read_anchor,
    read_chunk,
)
from lattice.domain.recording_proof import recorded_session
from lattice.domain.sealed import DataKey
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.terminal import (
    EndCause,
    Errors,
    Exit,
    Output,
    Resize,
    StdinEnd,
    write_message,
)
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.attach.model import Ended, EndReason, Failure, Start
from lattice.features.attach.node import recorder
from lattice.features.attach.node.chunk_files import ChunkFiles, durable_chunks
from lattice.features.attach.recording_frames import RecordingFrame, stored_frame
from lattice.features.attach.service.recorded import TerminalRecording
from lattice.features.attach.service.recording_closer import RecordingCloser
from lattice.features.attach.service.recordings import ALONE, OPEN_RECORDINGS, Recordings
from lattice.features.attach.service.records import SessionRecords
from lattice.features.attach.sessions import AttachSession
from lattice.foundation.recording_store import RecordingStore
from tests.eventually import eventually_async
from tests.fakes.attached import ALICE, AttachReplica, Client
from tests.fakes.claimed_nodes import FixedClaims, node_claim
from tests.fakes.cluster import allocation, populated
from tests.fakes.held_terminals import CutCarrier, Holder
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.recorded_nodes import KEY, RecordedNodes
from tests.fakes.required_trail import RequiredTrail

SESSION = "a" * 32
OTHER = "b" * 32


class AheadClock(SystemClock):
    """The machine's own, set ahead by a test."""

    ahead_s = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.ahead_s)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class _ServerKeys:
    """The data keys of the servers."""

    def __init__(self) -> None:
        self.is_away = False

    async def key_of(self, _: Allocation) -> DataKey:
        return await self.existing("")

    async def existing(self, _: str) -> DataKey:
        if self.is_away:
            raise Unavailable("The key service does not answer.")
        return KEY

    async def cluster(self) -> str:
        return "lab"


class Site:
    """Two servers, one node with a recorder, and alice's sensitive job."""

    def __init__(self, folder: Path, *, can_record: bool = True) -> None:
        self.clock = clock = AheadClock()
        self.scheduler = populated(clock)
        self.job = allocation(1, "alice", "theory", vcluster="vault")
        self.scheduler.allocations[:] = [self.job]
        self.nodes = RecordedNodes(clock, folder / "recordings", "n1")
        self.state = InMemoryStateStore(clock)
        self.objects = InMemoryObjectStore(clock)
        self.store = RecordingStore(self.objects)
        self.keys = _ServerKeys()
        self.trail = RequiredTrail(clock)
        self.sensitive = SensitiveWork(
            Vclusters((Vcluster("vault", VclusterKind.SENSITIVE, "vault"),)),
            FixedClaims((node_claim("alice", "n1"),)),
        )
        self.can_record = can_record
        self.one = self._replica("r1", self.state)
        self.two = self._replica("r2", self.state.another())
        self.closer = self._closer(self.state)
        self.clients: list[Client] = []

    def _replica(self, name: str, state: InMemoryStateStore) -> AttachReplica:
        finder = self.finder = AllocationFinder(self.scheduler, self.clock, None, self.sensitive)
        recordings = Recordings(state)
        more = (self.store, self.keys) if self.can_record else ()
        return AttachReplica(
            name,
            state,
            self.scheduler,
            self.nodes,
            self.nodes.signer,
            finder=finder,
            acts=SensitiveActs(self.sensitive, self.trail),
            recording=TerminalRecording(self.sensitive, recordings, self.clock, *more),
        )

    def _closer(self, state: InMemoryStateStore) -> RecordingCloser:
        return RecordingCloser(
            Recordings(state),
            SessionRecords(state, self.clock, "r1"),
            self.store,
            self.keys.existing,
            self.nodes,
            self.nodes.signer,
            self.trail,
            self.clock,
        )

    def client(self, session: str = SESSION) -> Client:
        made = Client(session)
        self.clients.append(made)
        return made

    async def entered(self, session: str = SESSION) -> Client:
        client = self.client(session)
        client.dial(self.one)
        assert (await client.opened()).recorded
        await client.read()
        return client

    async def texts(self, session: str = SESSION) -> list[ChunkText]:
        """The content of the recording in the bucket, verified up to where it is."""
        entry = await Recordings(self.state).of(session)
        anchor = await self.anchor(session)
        verifier = RecordingVerifier(entry.name, anchor, KEY)
        found = []
        async for number, chunk in self.store.chunks(entry.path):
            text = verifier.take(number, chunk)
            assert text is not None
            found.append(text)
        if anchor is not None:
            verifier.finish()
        return found

    async def anchor(self, session: str = SESSION) -> Anchor | None:
        """What the audit log says of the end of a recording; None while it is open."""
        entry = await Recordings(self.state).of(session)
        named = await self.trail.entry(entry.sequence)
        recorded = recorded_session(named) if named is not None else None
        return recorded.anchor if recorded is not None else None

    async def recorded(self, kind: CastKind, session: str = SESSION) -> bytes:
        texts = await self.texts(session)
        return b"".join(e.data for t in texts for e in t.events if e.kind is kind)

    def acts(self, act: AuditAct) -> list[str]:
        return [each.detail for each in self.trail.events if each.act is act]

    def state_keys(self, prefix: str) -> list[str]:
        return [key for key in self.state.space.entries if key.startswith(prefix)]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    await close_site(made)


async def close_site(site: Site) -> None:
    for client in site.clients:
        await client.aclose()
    for replica in (site.one, site.two):
        await replica.keeping.aclose()
    await site.nodes.aclose()


async def shown(client: Client, size: int) -> bytes:
    """Output of so many bytes at least."""
    shown = b""
    while len(shown) < size:
        message = await client.read()
        assert isinstance(message, Output | Errors)
        shown += message.text
    return shown


def _last(client: Client) -> object:
    return client.line.words[-1]


@pytest.mark.threat("recording-bypass")
async def test_what_is_shown_was_stored_before(site: Site) -> None:
    client = await site.entered()
    for text in (b"one", b"two", b"three"):
        await client.type(text)
        assert await shown(client, len(text)) == text
        assert (await site.recorded(CastKind.OUTPUT)).endswith(text)
        assert (await site.recorded(CastKind.INPUT)).endswith(text)
    assert site.acts(AuditAct.ATTACH_START)[0].startswith(f"session {SESSION} on n1")


@pytest.mark.threat("recording-bypass")
async def test_a_client_that_connects_during_the_write_of_a_chunk_gets_it_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server refuses a chunk that it has stored already, and a chunk not on the disk is early."""
    written, append, join = list[int](), ChunkFiles.append, Holder.join

    def slow(files: ChunkFiles, number: int, chunk: bytes) -> None:
        if number == 0:
            time.sleep(0.3)
        append(files, number, chunk)
        written.append(number)

    async def late(holder: Holder, carrier: CutCarrier) -> None:
        # The first chunk is made 20 ms after the recording began.
        await asyncio.sleep(0.05)
        await join(holder, carrier)

    monkeypatch.setattr(ChunkFiles, "append", slow)
    monkeypatch.setattr(Holder, "join", late)
    client = await site.entered()
    assert written[:1] == [0], "the first words of the terminal wait for their chunk"
    await client.type(b"one")
    assert await shown(client, 3) == b"one"


async def test_the_first_output_after_a_pause_waits_for_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is typed is shown soon. Output right behind it makes fewer and larger chunks."""
    client = await site.entered()
    monkeypatch.setattr(recorder, "CUT_S", 60.0)
    async with asyncio.timeout(30):
        await client.type(b"k")
        assert await shown(client, 1) == b"k"
    monkeypatch.setattr(recorder, "CUT_S", 1.0)
    before = len(await site.texts())
    for _ in range(10):
        await site.nodes.holders[SESSION].conduit.send(write_message(Output(b"o")))
    assert await shown(client, 10) == b"o" * 10
    assert len(await site.texts()) == before + 1


async def test_what_is_typed_after_the_end_is_dropped_and_the_end_is_shown(site: Site) -> None:
    """`lattice attach 7 -- echo hello` closes the input of a program that has ended."""
    client = await site.entered()
    site.objects.away = True
    await client.type(b"exit 3")
    await eventually_async(lambda: bool(site.nodes.agent._open[SESSION].recorder.has_end))
    await client.conduit.send(write_message(StdinEnd()))
    await asyncio.sleep(0.05)
    site.objects.away = False
    message = await client.read()
    assert isinstance(message, Exit)
    assert message.code == 3


async def test_a_session_ends_with_its_recording_anchored(site: Site) -> None:
    client = await site.entered()
    await client.type(b"exit 3")
    message = await client.read()
    assert isinstance(message, Exit)
    assert message.code == 3
    await client.conduit.send(b"", last=True)
    await client.leave(orderly=True)
    assert site.state_keys(ALONE) == []
    await site.closer.close_all()
    (detail,) = site.acts(AuditAct.ATTACH_END)
    found = read_anchor(detail)
    assert found is not None
    assert (found.session, found.reason, found.account) == (SESSION, "exited", "theory")
    texts = await site.texts()
    assert len(texts) == found.anchor.chunks
    assert texts[-1].reason == "exited"
    assert texts[-1].events[-1][1:] == (CastKind.EXIT, b"3")
    await eventually_async(lambda: not (site.nodes.folder / SESSION).exists())
    await site.closer.close_all()
    assert len(site.acts(AuditAct.ATTACH_END)) == 1


@pytest.mark.threat("recording-bypass")
async def test_nothing_is_shown_while_the_object_store_is_away(site: Site) -> None:
    client = await site.entered()
    site.objects.away = True
    await client.type(b"secret")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.read(), 0.5)
    site.objects.away = False
    assert await shown(client, 6) == b"secret"


@pytest.mark.threat("recording-bypass")
async def test_a_store_that_stays_away_ends_the_session(site: Site) -> None:
    client = await site.entered()
    site.objects.away = True
    await client.type(b"secret")
    await asyncio.sleep(0.1)
    site.clock.ahead_s += recorder.LONGEST_UNSTORED_S + 1
    await client.served()
    ended = _last(client)
    assert isinstance(ended, Ended)
    assert ended.reason is EndReason.UNRECORDED
    assert ended.words == "recording impossible: the object store has not answered for 30 s"
    # The holder lost its recorder: the helper's holder ends the program then.
    await eventually_async(lambda: site.nodes.holders[SESSION].carrier is None or _is_cut(site))
    site.objects.away = False
    await site.closer.close_all()
    assert await site.recorded(CastKind.INPUT) == b"secret"
    found = read_anchor(site.acts(AuditAct.ATTACH_END)[0])
    assert found is not None
    assert found.reason == "recording_impossible"
    assert site.state_keys(ALONE) == []


def _is_cut(site: Site) -> bool:
    carrier = site.nodes.holders[SESSION].carrier
    return carrier is not None and carrier._lost


@pytest.mark.threat(22, "recording-bypass")
async def test_a_recorder_that_stood_still_ends_the_session_with_the_reason(site: Site) -> None:
    """The holder took it for lost and ended the program; then it went on, and heard of it."""
    client = await site.entered()
    await site.nodes.holders[SESSION].end(Exit(cause=EndCause.CLIENT_LOST, code=129))
    await client.served()
    ended = _last(client)
    assert isinstance(ended, Ended)
    assert ended.reason is EndReason.UNRECORDED
    assert ended.words == "recording impossible: the recorder on n1 stood still"


async def test_a_person_who_leaves_for_good_is_no_fault_of_the_recorder(site: Site) -> None:
    client = await site.entered()
    await client.conduit.send(b"", last=True)
    await site.nodes.holders[SESSION].end(Exit(cause=EndCause.CLIENT_LOST, code=129))
    assert isinstance(await client.read(), Exit)


@pytest.mark.threat("recording-bypass")
async def test_a_full_disk_ends_the_session(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await site.entered()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ChunkFiles, "append", fails)
    await client.type(b"secret")
    await client.served()
    ended = _last(client)
    assert isinstance(ended, Ended)
    assert ended.words == "recording impossible: disk full on n1"
    assert not site.nodes.holders[SESSION].conduit.begun or _is_cut(site)


async def _refused(site: Site, client: Client) -> LatticeError:
    error = await client.served()
    assert error is not None
    assert isinstance(_last(client), Failure)
    return error


@pytest.mark.threat("recording-bypass")
async def test_without_a_data_key_on_the_node_no_terminal_opens(site: Site) -> None:
    site.nodes.keys.default = None
    client = site.client()
    client.dial(site.one)
    error = await _refused(site, client)
    assert "recording impossible: the key of this job is not on n1" in error.message
    assert site.nodes.holders == {}


async def test_the_key_is_asked_for_by_the_run_that_the_grant_names(site: Site) -> None:
    await site.entered()
    started = site.job.started
    assert started is not None
    assert site.nodes.keys.asked == [(site.job.ref, site.job.job_id, int(started.timestamp()))]


@pytest.mark.threat("recording-bypass")
async def test_without_a_server_that_gives_the_key_no_terminal_opens(site: Site) -> None:
    site.nodes.keys.error = Unavailable("This node is not linked to any server.")
    client = site.client()
    client.dial(site.one)
    error = await _refused(site, client)
    assert "recording impossible: the key of this job is not on n1" in error.message
    assert site.nodes.holders == {}


async def test_a_terminal_that_does_not_open_leaves_no_recording(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise Unavailable("Terminals of sensitive work open in signed images only: no uenv.")

    monkeypatch.setattr(RecordedNodes, "holder", refuses)
    client = site.client()
    client.dial(site.one)
    refused = await _refused(site, client)
    assert "signed images only" in refused.message
    assert "srun" not in refused.hint, "what Slurm opens would not be recorded"
    assert site.state_keys(ALONE) == []
    assert not (site.nodes.folder / SESSION).exists()
    await site.closer.close_all()
    assert [each.reason for each in await site.texts()] == ["failed"]
    assert len(site.acts(AuditAct.ATTACH_END)) == 1


async def test_without_the_key_service_no_terminal_opens(site: Site) -> None:
    site.keys.is_away = True
    client = site.client()
    client.dial(site.one)
    assert isinstance(await _refused(site, client), Unavailable)
    assert site.state_keys(ALONE) == []


@pytest.mark.threat("recording-bypass")
async def test_a_server_that_can_not_record_opens_no_terminal(tmp_path: Path) -> None:
    site = Site(tmp_path, can_record=False)
    client = site.client()
    client.dial(site.one)
    assert isinstance(await _refused(site, client), PermissionRefused)
    assert site.nodes.asked == []
    await close_site(site)


async def test_without_the_audit_log_no_terminal_opens(site: Site) -> None:
    site.trail.is_away = True
    client = site.client()
    client.dial(site.one)
    assert "SensitiveAuditRequired" in (await _refused(site, client)).message
    assert site.state_keys(ALONE) == []
    assert site.nodes.asked == []


@pytest.mark.threat("second-terminal")
async def test_a_second_session_learns_who_has_the_first(site: Site) -> None:
    await site.entered()
    second = site.client(OTHER)
    second.dial(site.two)
    error = await _refused(site, second)
    assert isinstance(error, Conflict)
    assert error.message.startswith("alice has a terminal in this allocation, on n1 since ")
    (entry,) = site.trail.refused
    assert entry.act is AuditAct.ATTACH_START
    assert entry.detail.startswith(f"session {OTHER} on n1")


@pytest.mark.threat("second-terminal")
async def test_of_a_hundred_that_race_over_two_servers_one_begins(site: Site) -> None:
    entries = [
        await TerminalRecording(
            site.sensitive, Recordings(site.state), site.clock, site.store, site.keys
        ).beginning(ALICE, site.job, "n1", Start(session=f"{number:032x}"))
        for number in range(100)
    ]
    replicas, refusals = (site.one, site.two), list[str]()

    async def begin(number: int) -> bool:
        session = _session(site, f"{number:032x}")
        try:
            await replicas[number % 2].records.begin(session, entries[number])
        except Conflict as refused:
            refusals.append(refused.message)
            return False
        return True

    assert sum(await asyncio.gather(*map(begin, range(100)))) == 1
    assert len(refusals) == 99
    assert all(each.startswith("alice has a terminal") for each in refusals)
    assert len(site.state_keys(ALONE)) == len(site.state_keys(OPEN_RECORDINGS)) == 1


@pytest.mark.threat("recording-bypass")
async def test_a_client_can_not_confirm_chunks(site: Site) -> None:
    client = await site.entered()
    site.objects.away = True
    await client.type(b"secret")
    client.line.put(stored_frame(1, bytes(32)))
    await client.served()
    failure = _last(client)
    assert isinstance(failure, Failure)
    assert "not the client's to send" in failure.message


@pytest.mark.threat("recording-bypass")
async def test_a_flood_and_a_storm_of_resizes_are_recorded_whole(site: Site) -> None:
    client = await site.entered()
    text = bytes(range(256)) * 64
    reading = asyncio.create_task(shown(client, 40 * len(text)))
    for number in range(40):
        await client.type(text)
        resize = Resize(10 + number, 20 + number)
        await client.conduit.send(write_message(resize))
    assert await reading == text * 40
    assert await site.recorded(CastKind.OUTPUT) == text * 40
    assert await site.recorded(CastKind.INPUT) == text * 40
    resizes = b"".join(f"{20 + n}x{10 + n}".encode() for n in range(40))
    assert await site.recorded(CastKind.RESIZE) == resizes


async def test_a_recording_goes_on_at_another_server(site: Site) -> None:
    client = await site.entered()
    await client.type(b"one")
    await shown(client, 3)
    await client.leave()
    client.dial(site.two)
    await client.opened()
    await client.type(b"two")
    assert await shown(client, 3) == b"two"
    assert await site.recorded(CastKind.OUTPUT) == b"onetwo"


@pytest.mark.threat("recording-bypass")
async def test_a_killed_agent_leaves_a_session_that_can_not_go_on(site: Site) -> None:
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
    ended = _last(client)
    assert isinstance(ended, Ended)
    assert ended.reason is EndReason.SHELL_LOST
    await site.closer.close_all()
    # What was typed was durable on the node, and the person saw nothing of it.
    assert await site.recorded(CastKind.INPUT) == b"onetwo"
    assert (await site.texts())[-1].reason == "shell_lost"
    assert len(site.acts(AuditAct.ATTACH_END)) == 1
    assert not (site.nodes.folder / SESSION).exists()


def on_disk(site: Site) -> bytes:
    name = RecordingName("lab", site.job.ref, SESSION)
    texts = [read_chunk(KEY, name, each) for each in durable_chunks(site.nodes.folder / SESSION)]
    return b"".join(event.data for text in texts for event in text.events)


async def test_a_lost_node_is_waited_for_and_then_its_recording_is_closed(site: Site) -> None:
    client = await site.entered()
    await client.type(b"one")
    await shown(client, 3)
    await client.leave(orderly=True)
    site.nodes.linked.clear()
    await site.closer.close_all()
    assert site.acts(AuditAct.ATTACH_END) == []
    site.clock.ahead_s += 16 * 60
    await site.closer.close_all()
    assert len(site.acts(AuditAct.ATTACH_END)) == 1
    assert (await site.texts())[-1].reason == "closed"
    assert await site.recorded(CastKind.OUTPUT) == b"one"


async def test_a_server_that_ends_while_it_closes_changes_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await site.entered()
    await client.leave(orderly=True)
    site.trail.is_away = True
    await site.closer.close_all()
    assert site.closer.failures_total == 1
    site.trail.is_away = False

    async def never(*_: object) -> bool:
        raise Unavailable("etcd does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Recordings, "anchored", never)
        await site.closer.close_all()
    await site._closer(site.state.another()).close_all()
    details = site.acts(AuditAct.ATTACH_END)
    assert len(set(details)) == 1
    assert site.state_keys(OPEN_RECORDINGS) == []
    await site.texts()


def _session(site: Site, name: str) -> AttachSession:
    return AttachSession(
        id=name,
        user="alice",
        subject="alice-1",
        allocation=site.job.ref,
        attempt=1,
        node="n1",
        command=(),
        terminal=True,
        started=site.clock.now(),
    )


def test_frames_of_recordings_are_none_of_the_pipe() -> None:
    assert min(RecordingFrame) > max(FrameKind)
