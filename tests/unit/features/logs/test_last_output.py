"""When a job last wrote: asked of its nodes, bounded in time, and never made up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lattice.access.grants import GrantSigner
from lattice.base.errors import Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.allocation import Allocation, State
from lattice.domain.last_output import LastOutput
from lattice.domain.stream import StreamQuestion
from lattice.features.logs.node.feed import LogFeed
from lattice.features.logs.node.tail import FileTail
from lattice.features.logs.service.lastoutput import NodeLastOutputs
from tests.fakes.cluster import allocation
from tests.fakes.echoing_nodes import QueueCarrier, answered_by
from tests.fakes.manual_clock import ManualClock

CLOCK = ManualClock()
BEGAN = CLOCK.now().replace(microsecond=0)
BEGAN_MS = int(BEGAN.timestamp() * 1000)


class File:
    """What a node's agent follows, as far as this question goes."""

    def __init__(self, written_ms: int) -> None:
        self.tail = SimpleNamespace(written_ms=written_ms)


def following(*written_ms: int, trouble: str = "", job_id: int = 7) -> Any:
    return SimpleNamespace(
        identity=SimpleNamespace(job_id=job_id, started=BEGAN.timestamp() + 0.3),
        capture=SimpleNamespace(streams=tuple(map(File, written_ms))),
        trouble=trouble,
    )


class Nodes:
    """Real answers of `LogFeed` without a wire. `silent` ones never answer."""

    def __init__(self, silent: tuple[str, ...] = (), **followed: Any) -> None:
        self.followed = followed
        self.silent = silent
        self.asked: list[str] = []

    def linked_to(self, node: str) -> str:
        return node

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[QueueCarrier]:
        self.asked.append(question.node)
        if question.node not in self.followed and question.node not in self.silent:
            raise Unavailable(f"Node {question.node} is not linked.")
        found = self.followed.get(question.node)
        feed = LogFeed(lambda: (found,) if found else ())
        silent = question.node in self.silent
        async with answered_by(None if silent else feed, question.opening) as carrier:
            yield carrier


def job(nodes: str = "n1", **more: Any) -> Allocation:
    return allocation(7, "alice", "research", submitted=BEGAN, nodes=nodes, **more)


def asking(nodes: Nodes, within_s: float = 5.0, clock: ManualClock = CLOCK) -> NodeLastOutputs:
    return NodeLastOutputs(nodes, GrantSigner(SigningKey.generate(), clock), clock, within_s)


@pytest.mark.spec("ALLOC-1")
async def test_the_newest_of_all_nodes_wins() -> None:
    nodes = Nodes(n1=following(BEGAN_MS + 1000, BEGAN_MS + 9000), n2=following(BEGAN_MS + 4000))
    found = await asking(nodes).of(job("n[1-2]"))
    assert found == LastOutput(time=BEGAN + timedelta(seconds=9), nodes=2, answered=2)


@pytest.mark.spec("ALLOC-1")
async def test_none_yet_is_not_unknown() -> None:
    """Of two nodes one has no file of its own; the other's is empty."""
    found = await asking(Nodes(n1=following(0), n2=following())).of(job("n[1-2]"))
    assert found == LastOutput(time=None, nodes=2, answered=2)


@pytest.mark.spec("ALLOC-1")
async def test_what_stood_in_the_file_before_is_not_this_jobs() -> None:
    found = await asking(Nodes(n1=following(BEGAN_MS - 60_000))).of(job())
    assert found == LastOutput(time=None, nodes=1, answered=1)


@pytest.mark.spec("ALLOC-1")
async def test_a_node_that_does_not_answer_in_time_is_named() -> None:
    nodes = Nodes(silent=("n2",), n1=following(BEGAN_MS + 1000))
    found = await asking(nodes, within_s=0.2).of(job("n[1-2]"))
    assert found is not None
    assert (found.nodes, found.answered) == (2, 1)
    assert found.time == BEGAN + timedelta(seconds=1)
    assert found.trouble == "n2: it did not answer within 0.2 s"


@pytest.mark.spec("ALLOC-1")
async def test_nobody_answers_and_nothing_is_made_up() -> None:
    found = await asking(Nodes()).of(job())
    assert found == LastOutput(nodes=1, answered=0, trouble="Node n1 is not linked")


@pytest.mark.spec("ALLOC-1")
@pytest.mark.parametrize(
    ("followed", "said"),
    [
        (following(job_id=8), "the agent does not follow this job"),
        (following(trouble="The helper is away."), "The helper is away."),
    ],
)
async def test_an_agent_that_can_not_tell_says_so(followed: Any, said: str) -> None:
    found = await asking(Nodes(n1=followed)).of(job())
    assert found is not None
    assert (found.answered, said in found.trouble) == (0, True)


@pytest.mark.spec("ALLOC-1")
@pytest.mark.parametrize(
    "each",
    [
        job(state=State.PENDING, started=None, nodes=""),
        job(state=State.COMPLETED, ended=BEGAN + timedelta(minutes=1)),
        job(nodes=""),
    ],
)
async def test_only_of_what_runs(each: Allocation) -> None:
    nodes = Nodes()
    assert await asking(nodes).of(each) is None
    assert nodes.asked == []


async def test_many_who_ask_at_once_cost_the_node_one_answer() -> None:
    clock = ManualClock()
    nodes = Nodes(n1=following(BEGAN_MS + 1000))
    outputs = asking(nodes, clock=clock)
    answers = await asyncio.gather(*(outputs.of(job()) for _ in range(20)))
    assert len(set(answers)) == 1
    assert nodes.asked == ["n1"]
    clock.advance(3.1)
    await outputs.of(job())
    assert nodes.asked == ["n1", "n1"]


@pytest.mark.spec("ALLOC-1")
async def test_a_thousand_nodes() -> None:
    followed = {f"n{number}": following(BEGAN_MS + number) for number in range(1, 1001)}
    found = await asking(Nodes(**followed), within_s=30.0).of(job("n[1-1000]"))
    assert found == LastOutput(time=BEGAN + timedelta(milliseconds=1000), nodes=1000, answered=1000)


@pytest.mark.spec("ALLOC-1")
def test_the_time_is_the_files_own(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"")
    tail = FileTail(os.open(path, os.O_RDONLY), None, 0)
    assert tail.written_ms == 0, "an empty file was not written"
    path.write_bytes(b"x")
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    assert tail.written_ms == 1_700_000_000_123
    tail.mark = replace(tail.mark, inode=1)
    assert tail.written_ms == 0, "another file's time says nothing"
    tail.close()
    assert tail.written_ms == 0
