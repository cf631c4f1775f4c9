"""What `watch` shows does not depend on how an agent sends its snapshots.

An agent of an earlier release sent each snapshot whole; what it sent is recorded. An agent of today
gets the same snapshots to send, and sends all but the first as rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from lattice.access.actor import Actor
from lattice.access.grants import GrantSigner
from lattice.base.fast_start import argv
from lattice.base.signatures import SigningKey
from lattice.domain.alert import Alert, Progress
from lattice.domain.measured import JobSnapshot, Shown
from lattice.domain.node_snapshot import NodeMeasured, NodeSnapshot
from lattice.domain.stream import Session, StreamKind, StreamQuestion
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.telemetry.convert.snapshots import news_of
from lattice.features.telemetry.node.feed import MetricFeed
from lattice.features.telemetry.node.snapshots import SnapshotStore
from lattice.features.telemetry.service.node_follow import Means
from lattice.features.telemetry.service.node_snapshots import AgentSnapshots
from lattice.features.watch import wiring as watch
from lattice.features.watch.command.watch import WATCH
from lattice.features.watch.model import WatchMeasured
from lattice.features.watch.operations import WatchRequest
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.foundation.foundation import NodeAccess
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.contract.test_older_agents import TAPES, Tape
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.echoing_nodes import QueueCarrier, answered_by
from tests.fakes.foundation import in_memory_foundation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock
from tests.fakes.shell import COMMON_OPTIONS, FakeFollowed, FakeShell

ALICE = Actor(sub="sub-alice", user="alice")


class Followed:
    """What an agent sent to a server that followed one job, and how that was understood."""

    def __init__(self, file: Path) -> None:
        self.tape = tape = Tape(file)
        streams = tape.streams(StreamKind.METRICS)
        self.payloads = max(streams, key=len)[:-1]
        self.snapshots: list[NodeSnapshot] = []
        for payload in self.payloads:
            news = news_of(payload, tape.node, tape.job)
            assert isinstance(news, NodeMeasured)
            self.snapshots.append(news.snapshot)

    @property
    def began(self) -> float:
        return self.snapshots[0].now.identity.started


class Agent(Protocol):
    """The node's end; `advance` makes it send its next snapshot."""

    forms: list[str | None]

    async def __call__(self, session: Session, opening: bytes) -> None: ...

    def advance(self) -> None: ...


class EarlierAgent:
    """Sends what was recorded."""

    def __init__(self, followed: Followed) -> None:
        self._payloads = iter(followed.payloads)
        self._due: asyncio.Queue[bytes] = asyncio.Queue()
        self.forms: list[str | None] = []

    async def __call__(self, session: Session, opening: bytes) -> None:  # noqa: ARG002
        while True:
            await _Noted(session, self.forms).send(await self._due.get())

    def advance(self) -> None:
        self._due.put_nowait(next(self._payloads))


class TodaysAgent:
    """The feed of an agent, to which the snapshots come that were recorded."""

    def __init__(self, followed: Followed) -> None:
        self._coming = iter(followed.snapshots)
        self._judge = _RecordedJudge()
        self._store = SnapshotStore(lambda: self._judge)
        unused: Any = None
        self._feed = MetricFeed(self._store, unused)
        self.forms: list[str | None] = []

    async def __call__(self, session: Session, opening: bytes) -> None:
        noted: Any = _Noted(session, self.forms)
        await self._feed(noted, opening)

    def advance(self) -> None:
        snapshot = next(self._coming)
        if not self._judge.snapshot and snapshot.before is not None:
            self._store.measured(snapshot.before)
        self._judge.snapshot = snapshot
        self._store.measured(snapshot.now)


class _Noted:
    """A session that notes in which form snapshots are sent."""

    def __init__(self, session: Session, forms: list[str | None]) -> None:
        self._session = session
        self._forms = forms
        self.receive = session.receive

    async def send(self, payload: bytes, *, last: bool = False) -> None:
        self._forms.append(pb.LookTell.FromString(payload).WhichOneof("tell"))
        await self._session.send(payload, last=last)


class _RecordedJudge:
    """Judges as it was recorded."""

    snapshot: NodeSnapshot | None = None

    def see(self, snapshot: JobSnapshot, output: float | None) -> tuple[Alert, ...]:  # noqa: ARG002
        return ()

    @property
    def firing(self) -> tuple[Alert, ...]:
        return self.snapshot.firing if self.snapshot else ()

    @property
    def progress(self) -> Progress:
        return (self.snapshot and self.snapshot.progress) or Progress()

    @property
    def since(self) -> float | None:
        return self.snapshot.judged_since if self.snapshot else None


class OneNode:
    """The port `NodeStreams` to an agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def linked_to(self, node: str) -> str:
        return node and "r1"

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[QueueCarrier]:
        async with answered_by(self._agent, question.opening) as carrier:
            yield carrier


async def measured(followed: Followed, agent: Agent) -> list[WatchMeasured]:
    """What the server streams to Alice, one snapshot after the other."""
    clock = ManualClock(datetime.fromtimestamp(followed.snapshots[-1].now.time, UTC))
    scheduler = InMemoryScheduler(clock)
    scheduler.accounts = ACCOUNTS
    began = datetime.fromtimestamp(followed.began, UTC)
    job = allocation(
        followed.tape.job, "alice", "research", submitted=began, nodes=followed.tape.node
    )
    scheduler.allocations = [job]
    means = Means(
        nodes=OneNode(agent),
        signer=GrantSigner(SigningKey.generate(), clock),
        clock=clock,
        find_attempt=AttemptFinder(scheduler, clock).of,
        modes=lambda ref: ModeInForce(allocation=ref, mode=Mode.DEBUG, interval_s=1.0),
        patience=lambda _: 600.0,
    )
    looks = AgentSnapshots(means)
    nodes = NodeAccess(
        streams=means.nodes,
        signer=means.signer,
        looks=looks,
        modes=means.modes,
        attempts=AttemptFinder(scheduler, clock),
    )
    base = in_memory_foundation(clock, scheduler=scheduler, nodes=nodes)
    (binding,) = watch.wire(base, nodes).bindings
    asked = WatchRequest(id=job.id, metrics=tuple(Shown))
    found: list[WatchMeasured] = []
    agent.advance()
    try:
        async with asyncio.timeout(60), aclosing(await binding.handler(ALICE, asked)) as stream:
            async for record, _ in stream:
                if isinstance(record, WatchMeasured):
                    found.append(record)
                    if len(found) == len(followed.snapshots):
                        break
                    agent.advance()
    finally:
        await looks.aclose()
    return found


def printed(records: list[WatchMeasured], output: str) -> str:
    """What the command makes of these records."""
    values = argv.read(WATCH, ["1"])
    assert values is not None
    shell = FakeShell({}, output=output, width=120)
    shell.following = FakeFollowed(records)
    WATCH.run(shell, **{name: each for name, each in values.items() if name not in COMMON_OPTIONS})
    return shell.out


@pytest.mark.spec("WATCH-1", "TOP-1")
@pytest.mark.parametrize("file", TAPES, ids=lambda file: file.stem)
async def test_watch_shows_the_same_of_whole_snapshots_and_of_rows(file: Path) -> None:
    followed = Followed(file)
    earlier, today = EarlierAgent(followed), TodaysAgent(followed)
    before, after = await asyncio.gather(measured(followed, earlier), measured(followed, today))
    assert earlier.forms == ["sight"] * len(followed.snapshots)
    assert today.forms == ["sight", *["row"] * (len(followed.snapshots) - 1)]
    assert msgspec.to_builtins(after) == msgspec.to_builtins(before)
    for output in ("table", "json"):
        assert printed(after, output) == printed(before, output)
    # A lost number would be seen: of everything but cards there is one in every record.
    assert len(before) == len(followed.snapshots) == 9
    assert all(sum(figure.value is not None for figure in each.summary) == 10 for each in before)
