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

from lattice.base.errors import JobEnded, LatticeError, LoginRequired, NotFound, Unavailable
from lattice.domain.allocation import State
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
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


class Node:
    def __init__(self, folder: Path) -> None:
        self.path, self.clock, self.servers = folder / "job.sock", ManualClock(), Servers()
        self.known: Known | LatticeError = Known()
        self.answers = JobAnswers(self.servers, self.clock)
        self.socket = JobSocket(self.path, self._identify, self.answers.describe, self.clock)

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
