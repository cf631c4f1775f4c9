"""The socket on which jobs ask, on a real one; and the tokens that the agent holds for them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lattice.base.errors import (
    JobEnded,
    LatticeError,
    LoginRequired,
    NotFound,
    PermissionRefused,
    Unavailable,
)
from lattice.domain.allocation import State
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.domain.run_events import RunEvent, RunEventKind
from lattice.features.identity.model import IssuedJobToken, JobSelf
from lattice.features.identity.node.job_answers import JobAnswers
from lattice.features.identity.node.job_socket import JobSocket
from tests.fakes.manual_clock import RECORDED, ManualClock

JOB = NodeJob(
    identity=JobIdentity("boot", 12, 1, 1000.0), started_by=StartSign.FOLDER, uid=os.getuid()
)
SELF = JobSelf(
    cluster="lab",
    id="12_7",
    allocation="12_7@1794702411",
    attempt=2,
    job_id=12,
    name="train",
    user="alice",
    account="research",
    tenant="physics",
    partition="batch",
    state=State.RUNNING,
    nodes="n[1-2]",
    node_count=2,
    started=RECORDED,
    time_limit_s=None,
)


@dataclass
class Known:
    """Who connects, by the test's word."""

    uid: int = field(default_factory=os.getuid)
    job: NodeJob | None = JOB


@dataclass
class Servers:
    """Every token is told apart; those below `refused_below` are not taken."""

    issued: int = 0
    refused_below: int = 0
    asked: list[str] = field(default_factory=list)
    fault: LatticeError | None = None

    async def issue(self, job_id: int, started: float) -> IssuedJobToken:
        if self.fault:
            raise self.fault
        self.issued += 1
        return IssuedJobToken(token=f"{job_id}@{started:g}#{self.issued}", lifetime_s=600)

    async def describe(self, token: str) -> JobSelf:
        self.asked.append(token)
        if int(token.partition("#")[2]) < self.refused_below:
            raise LoginRequired("not accepted")
        return SELF


@dataclass
class Events:
    """Keeps what jobs report; `known` False: they are not measured here."""

    known: bool = True
    kept: list[tuple[JobIdentity, RunEvent]] = field(default_factory=list)

    def now(self) -> float:
        return RECORDED.timestamp()

    def report(self, identity: JobIdentity, event: RunEvent) -> bool:
        if self.known:
            self.kept.append((identity, event))
        return self.known


class Node:
    def __init__(self, folder: Path, *, measures: bool = True) -> None:
        self.events = Events()
        self.path, self.clock, self.servers = folder / "job.sock", ManualClock(), Servers()
        self.known: Known | LatticeError = Known()
        self.answers = JobAnswers(self.servers, self.clock)
        self.socket = JobSocket(
            self.path,
            self._identify,
            self.answers.describe,
            self.clock,
            self.events if measures else None,
        )

    async def _identify(self, connection: socket.socket) -> Known:
        assert connection.family == socket.AF_UNIX
        if isinstance(self.known, LatticeError):
            raise self.known
        return self.known

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        task = asyncio.create_task(self.socket.run())
        while not self.path.is_socket():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.005)
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def ask(self, line: bytes = b'{"ask": "self"}\n') -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        try:
            writer.write(line)
            answer = await reader.read()
        except ConnectionError:
            return {}  # not served at all
        finally:
            writer.close()
        return dict(json.loads(answer)) if answer else {}


async def test_a_job_learns_who_it_is(tmp_path: Path) -> None:
    async with Node(tmp_path).running() as node:
        answer = await node.ask()
        assert stat.S_IMODE(node.path.stat().st_mode) == 0o666
    assert answer["self"]["id"] == "12_7"
    assert answer["self"]["attempt"] == 2
    assert answer["self"]["state"] == "running"
    assert answer["self"]["started"] == RECORDED.isoformat()
    assert "token" not in json.dumps(answer)
    assert not node.path.exists()


@pytest.mark.parametrize(
    "known", [Known(job=None), Known(uid=os.getuid() + 1), Known(job=replace(JOB, uid=None))]
)
async def test_whoever_is_in_no_job_of_its_own_learns_nothing(tmp_path: Path, known: Known) -> None:
    async with Node(tmp_path).running() as node:
        node.known = known
        answer = await node.ask()
        node.known = NotFound("You are in no job of yours on this node.")
        assert await node.ask() == answer
    assert answer["error"]["code"] == "not_found"
    assert node.servers.asked == []


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"self\n",
        b'{"ask": "self", "job": 13}\n',
        b'{"ask": "self", "ask": "other"}\n',
        b'{"ask": "event"}\n',
        b'{"event": {"text": "x"}, "job": 13}\n',
        b'{"event": {"text": "x"}, "ask": "self"}\n',
        b'["event"]\n',
        b"[" * 3000 + b"\n",
        b'"' + b"x" * 5000 + b'"\n',
        b"\xff\xfe\n",
    ],
)
async def test_what_is_no_question_is_refused(tmp_path: Path, line: bytes) -> None:
    async with Node(tmp_path).running() as node:
        assert (await node.ask(line))["error"]["code"] == "usage"
    assert node.servers.asked == []


async def test_the_servers_words_reach_the_job(tmp_path: Path) -> None:
    async with Node(tmp_path).running() as node:
        node.servers.fault = JobEnded("Job 12 does not run on n1 any more.")
        assert (await node.ask())["error"]["code"] == "job_ended"
        node.servers.fault = Unavailable("This node is not linked.", hint="It dials again.")
        assert (await node.ask())["error"]["hint"] == "It dials again."


async def test_a_job_asks_at_a_bounded_pace(tmp_path: Path) -> None:
    async with Node(tmp_path).running() as node:
        for _ in range(60):
            assert "self" in await node.ask()
        assert (await node.ask())["error"]["code"] == "rate_limited"
        node.clock.advance(2)
        assert "self" in await node.ask()


async def test_an_account_has_few_connections_at_once(tmp_path: Path) -> None:
    async with Node(tmp_path).running() as node:
        held = [await asyncio.open_unix_connection(node.path) for _ in range(8)]
        await asyncio.sleep(0.05)
        assert await node.ask() == {}
        held.pop()[1].close()
        await asyncio.sleep(0.05)
        assert "self" in await node.ask()
        for _, writer in held:
            writer.close()


async def test_a_socket_left_by_an_earlier_agent_is_replaced(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(node.path))
    async with node.running():
        await asyncio.sleep(0.05)
        assert "self" in await node.ask()


def event(**fields: object) -> bytes:
    return json.dumps({"event": fields}).encode() + b"\n"


async def test_a_job_reports_an_event_of_its_own(tmp_path: Path) -> None:
    async with Node(tmp_path).running() as node:
        line = event(text="epoch 3 done", name="epoch", attributes={"loss": 0.25, "best": True})
        answer = await node.ask(line)
    assert answer == {"event": {"time": RECORDED.isoformat()}}
    ((identity, kept),) = node.events.kept
    assert identity == JOB.identity
    assert (kept.kind, kept.name, kept.text) == (RunEventKind.JOB, "epoch", "epoch 3 done")
    assert kept.attributes == (("loss", "0.25"), ("best", "true"))
    assert node.servers.asked, "a server has said that the job runs"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text": ""},
        {"text": "x" * 501},
        {"text": 7},
        {"text": "two\nlines"},
        {"text": "\x1b[2J"},
        {"text": "\ud800"},
        {"text": "x", "job": 13},
        {"text": "x", "job_id": 13, "user": "bob"},
        {"text": "x", "name": "n" * 65},
        {"text": "x", "attributes": []},
        {"text": "x", "attributes": {str(each): 1 for each in range(17)}},
        {"text": "x", "attributes": {"a": [1]}},
        {"text": "x", "attributes": {"a": None}},
        {"text": "x", "attributes": {"a": "y" * 201}},
        {"text": "x", "attributes": {"": 1}},
        {"text": "x", "attributes": {"a": 1 << 63}},
    ],
)
async def test_what_is_no_event_is_refused(tmp_path: Path, fields: dict[str, object]) -> None:
    async with Node(tmp_path).running() as node:
        answer = await node.ask(event(**fields))
    assert answer["error"]["code"] == "usage"
    assert node.events.kept == []


@pytest.mark.parametrize(
    "known", [Known(job=None), Known(uid=os.getuid() + 1), Known(job=replace(JOB, uid=None))]
)
async def test_whoever_is_in_no_job_of_its_own_reports_nothing(
    tmp_path: Path, known: Known
) -> None:
    async with Node(tmp_path).running() as node:
        node.known = known
        assert (await node.ask(event(text="x")))["error"]["code"] == "not_found"
    assert (node.events.kept, node.servers.asked) == ([], [])


@pytest.mark.threat("job-events")
@pytest.mark.parametrize(
    "fault",
    [
        JobEnded("Job 12 does not run on n1 any more."),
        PermissionRefused("Your access to Lattice is locked: stolen laptop."),
        Unavailable("This node is not linked."),
    ],
)
async def test_an_event_needs_a_servers_word(tmp_path: Path, fault: LatticeError) -> None:
    async with Node(tmp_path).running() as node:
        node.servers.fault = fault
        assert (await node.ask(event(text="x")))["error"]["message"] == fault.message
    assert node.events.kept == []


async def test_a_job_reports_at_a_bounded_pace_and_may_still_ask(tmp_path: Path) -> None:
    async with Node(tmp_path).running() as node:
        for _ in range(30):
            assert "event" in await node.ask(event(text="x"))
        assert (await node.ask(event(text="x")))["error"]["code"] == "rate_limited"
        assert "self" in await node.ask()
    assert len(node.events.kept) == 30


async def test_a_node_that_does_not_measure_the_job_says_so(tmp_path: Path) -> None:
    async with Node(tmp_path).running() as node:
        node.events.known = False
        assert "not measure the job yet" in (await node.ask(event(text="x")))["error"]["message"]
    async with Node(tmp_path, measures=False).running() as node:
        assert "measures no jobs" in (await node.ask(event(text="x")))["error"]["message"]


async def test_a_token_serves_many_questions_and_is_renewed_in_time() -> None:
    servers, clock = Servers(), ManualClock()
    answers = JobAnswers(servers, clock)
    for _ in range(3):
        await answers.describe(JOB)
    assert servers.issued == 1
    clock.advance(541)
    await answers.describe(JOB)
    assert servers.asked[-1] == "12@1000#2"


async def test_a_token_that_is_not_taken_is_replaced_once() -> None:
    servers = Servers(refused_below=2)
    answers = JobAnswers(servers, ManualClock())
    assert (await answers.describe(JOB)).id == "12_7"
    servers.refused_below = 99
    with pytest.raises(LoginRequired):
        await answers.describe(JOB)
    assert servers.issued == 3


async def test_tokens_of_jobs_that_ended_are_forgotten() -> None:
    servers = Servers()
    answers = JobAnswers(servers, ManualClock())
    again = replace(JOB, identity=JobIdentity("boot", 12, 2, 2000.0))
    await answers.describe(JOB)
    await answers.describe(again)
    answers.forget_ended([again.identity])
    assert len(answers) == 1
    await answers.describe(again)
    assert servers.issued == 2
