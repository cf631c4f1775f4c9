"""One connection after another: what begins, what goes on, and what is written down of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from lattice.base.clock import SystemClock
from lattice.base.errors import NotFound, PermissionRefused, RateLimited, Unavailable
from lattice.domain.allocation import Array, State
from lattice.domain.privileged import Enter
from lattice.domain.terminal import EndCause, Exit, Output, Started
from lattice.features.attach.model import (
    CHECKPOINTED_TEXT,
    TRY_AGAIN,
    Ended,
    EndReason,
    Failure,
    Notice,
    NoticeKind,
    Start,
)
from lattice.features.attach.service.records import OPEN, PAST
from lattice.features.attach.service.registry import SessionEntry
from tests.fakes.attached import ALICE, BOB, AttachReplica, Client
from tests.fakes.cluster import allocation, populated
from tests.fakes.held_terminals import HeldTerminals
from tests.fakes.in_memory_state import InMemoryStateStore


class AheadClock(SystemClock):
    """The machine's own, set ahead by a test."""

    ahead_s = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.ahead_s)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Site:
    """Two servers, one node, and jobs that run on it."""

    def __init__(self) -> None:
        self.clock = clock = AheadClock()
        self.scheduler = populated(clock)
        self.nodes = HeldTerminals(clock, "n1")
        self.state = InMemoryStateStore(clock)
        self.waits: list[tuple[float, asyncio.Event]] = []
        self.one = self._replica("r1", self.state)
        self.two = self._replica("r2", self.state.another())
        self.clients: list[Client] = []

    def _replica(self, name: str, state: InMemoryStateStore) -> AttachReplica:
        return AttachReplica(
            name, state, self.scheduler, self.nodes, self.nodes.signer, self._sleep
        )

    async def _sleep(self, seconds: float) -> None:
        waking = asyncio.Event()
        self.waits.append((seconds, waking))
        await waking.wait()

    async def waited(self) -> None:
        """Until somebody waits."""
        while not self.waits:
            await asyncio.sleep(0)

    def tick(self, longest_s: float = 5.0) -> None:
        """Let those go on who wait no longer than this."""
        for seconds, waking in self.waits:
            if seconds <= longest_s:
                waking.set()
        self.waits = [each for each in self.waits if not each[1].is_set()]

    def client(self, session: str = "a" * 32) -> Client:
        made = Client(session)
        self.clients.append(made)
        return made

    def change(self, job_id: int, **facts: Any) -> None:
        self.scheduler.allocations = [
            replace(each, **facts) if each.job_id == job_id else each
            for each in self.scheduler.allocations
        ]

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.state.space.entries if key.startswith(prefix)]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    for client in made.clients:
        await client.aclose()
    for replica in (made.one, made.two):
        await replica.keeping.aclose()
    await made.nodes.aclose()


async def record(site: Site) -> Any:
    (found,), more = await site.one.records.of("alice")
    assert not more
    return found


@pytest.mark.spec("ATTACH-1", "ATTACH-9")
async def test_a_terminal_from_its_start_to_its_exit_code(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    opened = await client.opened()
    assert (opened.node, opened.replica, opened.job, opened.user) == ("n1", "r1", "1", "alice")
    assert isinstance(await client.read(), Started)
    await client.type(b"\x00\xffbytes")
    assert await client.read() == Output(b"\x00\xffbytes")
    assert (await record(site)).ended is None
    await client.type(b"exit 3")
    assert await client.read() == Exit(cause=EndCause.EXITED, code=3)
    await client.conduit.send(b"", last=True)
    assert await client.served() is None
    assert client.line.closed == 1000
    over = await record(site)
    assert (over.reason, over.exit_code, over.subject) == (EndReason.EXITED, 3, "alice-1")
    assert over.ended >= over.started
    assert site.one.slots.held == 0
    assert not site.keys("slots/")
    assert [act[0] for act in site.one.journal.acts] == ["attach", "attach end"]


@pytest.mark.spec("ATTACH-9")
async def test_it_is_written_down_before_the_node_is_asked(site: Site) -> None:
    seen: list[list[str]] = []
    asked = site.nodes.open

    def spying(question: Any) -> Any:
        seen.append(site.keys(OPEN))
        return asked(question)

    site.nodes.open = spying  # type: ignore[method-assign]
    client = site.client()
    client.dial(site.one)
    await client.opened()
    assert seen == [[f"{OPEN}alice/{'a' * 32}"]]


@pytest.mark.spec("ATTACH-1")
async def test_the_node_is_asked_for_this_very_command_as_the_owner(site: Site) -> None:
    client = site.client()
    command = ("sh", "-c", "echo hi")
    start = Start(session=client.session, command=command, rows=40, columns=132, tools="/t.sqsh")
    client.dial(site.one, start=start)
    await client.opened()
    holder = site.nodes.holders[client.session]
    assert holder.question == Enter(client.session, command, "", 40, 132, "/t.sqsh", False)
    assert (holder.grant.user, holder.grant.job_id, holder.grant.subject) == (
        "alice",
        1,
        "alice-1",
    )
    (job,) = (each for each in site.scheduler.allocations if each.job_id == 1)
    assert job.started is not None
    assert holder.grant.started == int(job.started.timestamp())


@pytest.mark.spec("AUTH-7", "AUTH-12")
async def test_anothers_job_is_not_there_and_nor_is_one_that_never_was(site: Site) -> None:
    told = []
    for name in ("1", "999"):
        client = site.client("b" * 32)
        client.dial(site.one, name, BOB)
        error = await client.served()
        assert isinstance(error, NotFound)
        (word,) = client.line.words
        assert isinstance(word, Failure)
        told.append((word.code, word.message.replace(name, "N"), word.hint, client.line.closed))
    assert told[0] == told[1]
    assert not site.nodes.asked
    assert not site.keys("attach/")


@pytest.mark.spec("ATTACH-6")
@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"state": State.PENDING},
            "cannot attach to allocation in state 'pending'; must be 'running'",
        ),
        (
            {"state": State.COMPLETING},
            "cannot attach to allocation in state 'completing'; must be 'running'",
        ),
        ({"state": State.REQUEUED}, CHECKPOINTED_TEXT),
    ],
)
async def test_a_job_that_does_not_run_is_not_entered(
    site: Site, facts: dict[str, Any], words: str
) -> None:
    site.change(1, **facts)
    client = site.client()
    client.dial(site.one)
    if facts["state"].waiting:
        await site.waited()
        site.tick()
    error = await client.served()
    assert error is not None
    assert error.message == words
    assert not site.nodes.asked


@pytest.mark.spec("ATTACH-1")
async def test_a_job_that_begins_in_the_second_one_asks_is_entered(site: Site) -> None:
    """Slurm tells of changes by the second: what it said at first may be old already."""
    site.change(1, state=State.PENDING)
    client = site.client()
    client.dial(site.one)
    await site.waited()
    site.change(1, state=State.RUNNING)
    site.tick()
    assert isinstance(await client.read(), Started)


@pytest.mark.spec("ATTACH-1")
async def test_a_job_without_a_process_yet_is_waited_for_while_it_is_young(site: Site) -> None:
    site.nodes.refusal = NotFound("Node n1 refused: Job 1 has nothing of yours running on n1.")
    site.change(1, started=SystemClock().now())
    client = site.client()
    client.dial(site.one)
    await site.waited()
    site.nodes.refusal = None
    site.tick()
    assert isinstance(await client.read(), Started)
    site.nodes.refusal = NotFound("Node n1 refused: Job 1 has nothing of yours running on n1.")
    site.change(1, started=SystemClock().now() - timedelta(hours=1))
    late = site.client("b" * 32)
    late.dial(site.one)
    error = await late.served()
    assert isinstance(error, Unavailable)
    assert error.message == site.nodes.refusal.message, "an old one is not"


@pytest.mark.spec("ATTACH-6")
async def test_a_job_that_slurm_is_preempting_is_not_entered(site: Site) -> None:
    site.change(1, preempted_at=SystemClock().now())
    client = site.client()
    client.dial(site.one)
    error = await client.served()
    assert isinstance(error, Unavailable)
    assert error.message == CHECKPOINTED_TEXT


@pytest.mark.spec("ATTACH-6")
async def test_a_finished_job_is_not_entered(site: Site) -> None:
    client = site.client()
    client.dial(site.one, "101")
    error = await client.served()
    assert error is not None
    assert error.message == "cannot attach to allocation in state 'completed'; must be 'running'"
    assert error.code == "job_ended"


@pytest.mark.spec("ATTACH-9")
async def test_nobody_attaches_while_it_cannot_be_written_down(site: Site) -> None:
    site.state.away = True
    client = site.client()
    client.dial(site.one)
    error = await client.served()
    assert isinstance(error, Unavailable)
    assert error.message == "QuorumUnavailable: cannot record who attaches"
    assert not site.nodes.asked


@pytest.mark.spec("ATTACH-1")
async def test_an_open_session_goes_on_while_the_state_is_away(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    assert isinstance(await client.read(), Started)
    site.state.away = True
    site.tick()
    await client.type(b"still here")
    assert await client.read() == Output(b"still here")


@pytest.mark.spec("LIMIT-1")
async def test_the_sixth_terminal_is_refused(site: Site) -> None:
    clients = [site.client(f"{n:032x}") for n in range(6)]
    for client in clients[:5]:
        client.dial(site.one)
        await client.opened()
    clients[5].dial(site.two)
    error = await clients[5].served()
    assert isinstance(error, RateLimited)
    assert len(site.keys(OPEN)) == 5
    await clients[0].leave(orderly=True)
    again = site.client("f" * 32)
    again.dial(site.two)
    await again.opened()


@pytest.mark.spec("ATTACH-5", "ATTACH-9")
async def test_where_the_agent_is_missing_the_command_is_printed(site: Site) -> None:
    site.nodes.linked.clear()
    client = site.client()
    client.dial(site.one, start=Start(session=client.session, terminal="xterm", command=("top",)))
    error = await client.served()
    assert isinstance(error, Unavailable)
    assert error.hint is not None
    assert "srun --jobid=1 --overlap --pty -w n1 top" in error.hint
    assert (await record(site)).reason is EndReason.FAILED
    assert not site.keys("slots/")


async def test_what_the_helper_refuses_is_told_in_its_words(site: Site) -> None:
    site.nodes.refusal = PermissionRefused("Node n1 refused: the job has no process here")
    client = site.client()
    client.dial(site.one)
    error = await client.served()
    assert isinstance(error, PermissionRefused)
    assert "the job has no process here" in error.message


@pytest.mark.spec("ATTACH-4")
async def test_a_lost_client_goes_on_at_another_server_without_a_byte_lost(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    assert isinstance(await client.read(), Started)
    await client.leave()
    await client.type(b"typed while away")
    assert (await site.one.records.all_open())[0].left is not None
    client.dial(site.two)
    opened = await client.opened()
    assert (opened.replica, opened.sequence, opened.node) == ("r2", 2, "n1")
    assert await client.read() == Output(b"typed while away")
    kept = (await site.one.records.all_open())[0]
    assert (kept.replica, kept.left, kept.sequence) == ("r2", None, 2)
    assert len(site.keys("slots/")) == 1
    # The server that had it before has nothing to end any more.
    site.tick(longest_s=100)
    await asyncio.sleep(0)
    await client.type(b"on")
    assert await client.read() == Output(b"on")
    assert len(site.keys(OPEN)) == 1


@pytest.mark.spec("ATTACH-4")
async def test_a_broken_carrier_sends_the_client_back_for_more(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    assert isinstance(await client.read(), Started)
    carrier = site.nodes.holders[client.session].carrier
    assert carrier is not None
    carrier.cut()
    assert await client.served() is None
    assert client.line.closed == TRY_AGAIN
    client.dial(site.one)
    await client.opened()
    await client.type(b"back")
    assert await client.read() == Output(b"back")


@pytest.mark.spec("ATTACH-4")
async def test_a_node_that_is_not_linked_yet_is_tried_again(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    await client.opened()
    await client.leave()
    site.nodes.linked.clear()
    client.dial(site.one)
    assert await client.served() is None
    assert client.line.closed == TRY_AGAIN
    site.nodes.linked.add("n1")
    client.dial(site.one)
    await client.opened()


@pytest.mark.spec("ATTACH-5", "ATTACH-9")
async def test_a_node_that_stays_away_is_lost_whichever_server_is_asked(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    await client.opened()
    site.nodes.linked.clear()
    carrier = site.nodes.holders[client.session].carrier
    assert carrier is not None
    carrier.cut()
    await client.served()
    assert client.line.closed == TRY_AGAIN
    for replica in (site.two, site.one, site.two):
        client.dial(replica)
        await client.served()
        assert client.line.closed == TRY_AGAIN
    site.clock.ahead_s = 19
    client.dial(site.one)
    await client.served()
    assert client.line.words == [
        Ended(reason=EndReason.NODE_LOST, words="connection to node lost — attach session ended")
    ]
    assert (await record(site)).reason is EndReason.NODE_LOST


@pytest.mark.spec("ATTACH-4", "ATTACH-5")
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
async def test_an_absence_that_ended_elsewhere_does_not_count(site: Site, *, dies: bool) -> None:
    client = site.client()
    client.dial(site.one)
    await client.opened()
    assert isinstance(await client.read(), Started)
    await _lose_carrier(site, client)
    # The node answered again at another server.
    client.dial(site.two)
    await client.opened()
    await client.type(b"back")
    assert await client.read() == Output(b"back")
    site.clock.ahead_s = 19
    if dies:
        site.two.keeping.leave = _no_leave  # type: ignore[assignment,method-assign]
    await _lose_carrier(site, client)
    site.nodes.linked.clear()
    client.dial(site.one)
    await client.served()
    assert client.line.closed == TRY_AGAIN
    assert client.line.words == []
    site.nodes.linked.add("n1")
    client.dial(site.one)
    await client.opened()


async def _lose_carrier(site: Site, client: Client) -> None:
    carrier = site.nodes.holders[client.session].carrier
    assert carrier is not None
    carrier.cut()
    await client.served()
    assert client.line.closed == TRY_AGAIN


async def _no_leave(_: SessionEntry) -> None:
    """As of a server that was killed."""


@pytest.mark.spec("ATTACH-9")
async def test_a_shell_that_is_gone_ends_the_session(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    await client.opened()
    await client.leave()
    site.nodes.holders.clear()
    client.dial(site.two)
    assert await client.served() is None
    (word,) = client.line.words
    assert isinstance(word, Ended)
    assert word.reason is EndReason.SHELL_LOST
    assert "no such terminal" in word.words
    assert (await record(site)).reason is EndReason.SHELL_LOST


@pytest.mark.spec("ATTACH-4", "ATTACH-9")
async def test_a_client_that_does_not_come_back_is_written_down(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    await client.opened()
    await client.leave()
    await asyncio.sleep(0)
    assert [each for each, _ in site.waits if each == 60.0]
    site.tick(longest_s=60)
    while (await record(site)).ended is None:
        await asyncio.sleep(0)
    assert (await record(site)).reason is EndReason.CLIENT_LOST
    again = site.client()
    again.dial(site.one, start=Start(session=client.session, resume=True))
    assert isinstance(await again.served(), NotFound)


@pytest.mark.spec("AUTH-7")
async def test_another_caller_cannot_go_on_with_a_session(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    await client.opened()
    other = site.client()
    # The same Unix user under another subject: a service that may act for her.
    stranger = replace(ALICE, sub="robot")
    other.dial(site.one, actor=stranger, start=Start(session=client.session, resume=True))
    assert isinstance(await other.served(), NotFound)
    await client.type(b"mine")
    assert isinstance(await client.read(), Started)
    assert await client.read() == Output(b"mine")


async def test_a_session_resumed_on_another_job_is_not_there(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    await client.opened()
    await client.leave()
    client.dial(site.one, "5")
    assert isinstance(await client.served(), NotFound)


@pytest.mark.spec("ATTACH-4")
async def test_a_newer_connection_takes_the_older_ones_place(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    assert isinstance(await client.read(), Started)
    old = client.line
    assert client._serving is not None
    first = client._serving
    old_carrying = client._carrying
    client.dial(site.one)
    assert old_carrying is not None
    old_carrying.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert isinstance(old.words[-1], Ended)
    assert old.words[-1].reason is EndReason.REPLACED
    assert (await client.opened()).sequence == 2
    await client.type(b"here now")
    assert await client.read() == Output(b"here now")
    assert len(site.keys(OPEN)) == 1


@pytest.mark.spec("ATTACH-2", "ATTACH-9")
async def test_the_word_of_the_jobs_end_comes_before_the_shells(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    assert isinstance(await client.read(), Started)
    ended = SystemClock().now().replace(microsecond=0)
    site.change(1, state=State.COMPLETED, ended=ended)
    how = Exit(cause=EndCause.JOB_ENDED, code=137)
    await site.nodes.holders[client.session].end(how)
    assert await client.read() == how
    assert isinstance(client.line.words[-1], Notice)
    assert client.line.words[-1].kind is NoticeKind.JOB_ENDED
    assert client.line.words[-1].words == f"job 1 ended: COMPLETED at {ended:%H:%M:%S} UTC"
    await client.conduit.send(b"", last=True)
    await client.served()
    assert (await record(site)).reason is EndReason.JOB_ENDED


@pytest.mark.spec("ATTACH-6", "ATTACH-9")
async def test_a_preempted_job_ends_its_session_with_the_words(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    assert isinstance(await client.read(), Started)
    (job,) = (each for each in site.scheduler.allocations if each.job_id == 1)
    assert job.started is not None
    site.change(1, preempted_at=job.started + timedelta(minutes=1))
    await asyncio.sleep(0)
    site.tick()
    while len(client.line.words) < 2:
        await asyncio.sleep(0)
    assert isinstance(client.line.words[1], Notice)
    assert client.line.words[1].kind is NoticeKind.PREEMPTED
    site.change(1, state=State.PENDING, preempted_at=None, started=None)
    await asyncio.sleep(0)
    site.tick()
    await client.served()
    assert client.line.words[2] == Ended(
        reason=EndReason.PREEMPTED,
        words="[lattice] Allocation preempted. Session suspended. Use 'lattice attach 1' to "
        "reconnect after rescheduling.",
    )
    assert (await record(site)).reason is EndReason.PREEMPTED


@pytest.mark.spec("ATTACH-2")
@pytest.mark.parametrize(
    "first",
    [
        b"\x00frame",
        "no json",
        '{"type":"keepalive"}',
        '{"type":"start","session":"short"}',
        '{"type":"start","session":"' + "a" * 32 + '","uid":0}',
        '{"type":"start","session":"' + "a" * 32 + '","session":"' + "b" * 32 + '"}',
    ],
)
async def test_a_first_message_that_is_no_start_is_refused(site: Site, first: bytes | str) -> None:
    client = site.client()
    task = client.dial(site.one)
    client.line._inwards.get_nowait()
    client.line.put(first)
    error = await client.served()
    assert task.done()
    assert error is not None
    assert error.code == "usage"
    assert not site.keys("attach/")


@pytest.mark.spec("ATTACH-2")
async def test_nothing_is_entered_after_a_wrong_word(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    assert isinstance(await client.read(), Started)
    client.line.put('{"type":"become_root"}')
    error = await client.served()
    assert error is not None
    assert error.code == "usage"


@pytest.mark.spec("ATTACH-1")
async def test_a_task_of_an_array_has_to_be_named(site: Site) -> None:
    for task in (1, 2):
        site.scheduler.allocations.append(
            allocation(
                40 + task, "alice", "research", id=f"40_{task}", array=Array(40, task_id=task)
            )
        )
    client = site.client()
    client.dial(site.one, "40")
    error = await client.served()
    assert error is not None
    assert "40_1, 40_2" in error.message
    client = site.client("c" * 32)
    client.dial(site.one, "40_2")
    assert (await client.opened()).job == "40_2"


@pytest.mark.spec("ATTACH-9")
async def test_the_past_is_listed_for_its_owner_alone(site: Site) -> None:
    client = site.client()
    client.dial(site.one)
    await client.opened()
    await client.leave(orderly=True)
    assert site.keys(PAST)
    own = await site.two.listing.of(ALICE)
    assert [each.reason for each in own.sessions] == [EndReason.CLOSED]
    assert not (await site.two.listing.of(ALICE, only_open=True)).sessions
    assert not (await site.two.listing.of(BOB)).sessions
    assert not (await site.two.listing.of(replace(ALICE, user=""))).sessions
    assert len((await site.two.listing.of(ALICE, name="1")).sessions) == 1
    assert not (await site.two.listing.of(ALICE, name="5")).sessions
