"""From a server's port to a node's sources and back: of the right run, in time, nothing made up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lattice.access.grants import GrantChecker, GrantSigner
from lattice.base.clock import SystemClock
from lattice.base.errors import DataUnavailable, NotFound, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.grant import Act
from lattice.domain.jobfacts import (
    FactAbsence,
    FactKind,
    GpuFact,
    LinkFact,
    LinkKind,
    MountFact,
    NodeFacts,
    PeerFact,
    RankStack,
    StackFrame,
    StackLanguage,
    TaskFact,
)
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.domain.nodejobs import (
    UNREADABLE,
    JobAppeared,
    JobEvent,
    JobIdentity,
    NodeJob,
    NodeJobEnded,
    StartSign,
)
from lattice.domain.privileged import DumpStacks, ProbeMounts, ReadTasks, read_request
from lattice.domain.privileged import digest_of as question_digest
from lattice.domain.probed import StackReport
from lattice.domain.stream import Serve, Session, StreamKind, StreamQuestion, digest_of
from lattice.features.diag.convert import facts_opening, facts_opening_of
from lattice.features.diag.node.facts import (
    SILENT,
    FactFeed,
    FactSources,
    FoundFacts,
    NetworkFound,
    PeersFound,
)
from lattice.features.diag.node.job_runs import Baselines, JobRuns
from lattice.features.diag.node.stacks import StackFeed
from lattice.features.diag.service.node_queries import NodeQueries
from lattice.features.telemetry.convert.snapshots import node_snapshot_message, node_snapshot_of
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.wire.v1.telemetry_pb2 import LookTell
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.echoing_nodes import QueueCarrier, answered_by
from tests.fakes.in_memory_scheduler import InMemoryScheduler

pytestmark = pytest.mark.timeout(180)

CLOCK = SystemClock()
BEGUN = CLOCK.now().replace(microsecond=0) - timedelta(minutes=10)
BEGAN = BEGUN.timestamp() + 0.4
LINK = LinkFact(name="eth0", kind=LinkKind.ETHERNET, up=True)
PEER = PeerFact(address="10.0.0.2", sent_bytes=5e9, received_bytes=3.0)
MOUNT = MountFact(path="/home", kind="nfs4", source="filer:/home", answered_s=0.01)
TASK = TaskFact(rank=0, pid=42, state="S")
GPU = GpuFact(uuid="GPU-1", health="ok")


class Jobs:
    """Those that are on a node, by the node's clock, which is the servers'."""

    def __init__(self, *began: float) -> None:
        self._jobs = {
            each.identity: each
            for each in (
                NodeJob(identity=JobIdentity("b", 7, 1, moment), started_by=StartSign.FOLDER)
                for moment in began
            )
        }
        self.events: asyncio.Queue[JobEvent] = asyncio.Queue()

    def freeze(self, *pids: int) -> None:
        """These processes can't be read."""
        self._jobs = {each: replace(job, unread=pids) for each, job in self._jobs.items()}

    @property
    def jobs(self) -> Mapping[JobIdentity, NodeJob]:
        return self._jobs

    async def changes(self) -> AsyncIterator[JobEvent]:
        while True:
            yield await self.events.get()


class Node:
    """A node's own side, with sources that a test exchanges."""

    def __init__(self, name: str, key: bytes) -> None:
        self.name = name
        self.jobs = Jobs(BEGAN)
        self.checker = GrantChecker(name, CLOCK, [key])
        self.helper = GrantChecker(name, CLOCK, [key])
        self.network: Callable[[], Awaitable[NetworkFound]] = self._network
        self.looks: tuple[StackReport, ...] = (
            StackReport(
                pid=42,
                rank=int(name[1:]),
                language=StackLanguage.PYTHON,
                frames=(StackFrame("load\x1b", "/x.py", 8),),
                state="S",
            ),
        )
        self.refuses: Exception | None = None
        self.sight: Callable[[], Awaitable[bytes]] = self._sight
        self.serving: bool = True
        self.subjects: list[str] = []

    async def _network(self) -> NetworkFound:
        return NetworkFound((LINK,))

    async def _peers(self, _: JobIdentity) -> PeersFound:
        return PeersFound((PEER,), ("10.0.0.1",))

    def serve(self, kind: StreamKind) -> Serve:
        lives = JobRuns(self.jobs, lambda here: here)
        if kind is StreamKind.STACKS:
            return StackFeed(self.name, lives, self._dump)
        return FactFeed(
            self.name,
            lives,
            FactSources(
                network=lambda _: self.network(),
                mounts=self._mounts,
                tasks=self._tasks,
                gpus=self._gpus,
                peers=self._peers,
                snapshot=lambda job_id, _: self.sight() if job_id == 7 else _nothing(),
                clock_ahead_s=lambda: -0.5,
                last_output=lambda _: BEGAN + 1,
                now=lambda: BEGAN + 60,
            ),
        )

    async def _sight(self) -> bytes:
        identity = JobIdentity("b", 7, 1, BEGAN)
        used = Sample("memory_used_bytes", 5e8, BEGAN + 60)
        now = JobSnapshot(identity, BEGAN + 60, 30.0, (used,))
        return LookTell(sight=node_snapshot_message(BEGAN, None, now)).SerializeToString()

    def _checked(self, request: bytes, kind: type) -> Any:
        """As the helper does."""
        grant, verb, question = read_request(request)
        assert isinstance(question, kind)
        told = self.helper.check(grant, verb.act, digest=question_digest(question))
        assert (told.user, told.job_id, told.started) == ("alice", 7, int(BEGUN.timestamp()))
        self.subjects.append(told.subject)
        return question

    async def _mounts(self, request: bytes) -> FoundFacts[MountFact]:
        assert 300 <= self._checked(request, ProbeMounts).timeout_ms <= 2000
        return FoundFacts((MOUNT,))

    async def _tasks(self, request: bytes) -> FoundFacts[TaskFact]:
        self._checked(request, ReadTasks)
        return FoundFacts((TASK,))

    async def _gpus(self, _: JobIdentity) -> FoundFacts[GpuFact]:
        return FoundFacts((GPU,))

    async def _dump(self, request: bytes) -> tuple[StackReport, ...]:
        assert 1000 <= self._checked(request, DumpStacks).timeout_ms <= 15_000
        if self.refuses is not None:
            raise self.refuses
        return self.looks


async def _nothing() -> bytes:
    return b""


class Site:
    """The port `NodeStreams`, with the grants checked as agents do."""

    def __init__(self, nodes: str = "n[1-2]", count: int = 2) -> None:
        key = SigningKey.generate()
        self.nodes = {f"n{at}": Node(f"n{at}", key.public) for at in range(1, count + 1)}
        self.scheduler = InMemoryScheduler(CLOCK)
        self.scheduler.accounts = ACCOUNTS
        job = allocation(7, "alice", "research", submitted=BEGUN, nodes=nodes)
        self.scheduler.allocations = [job]
        self.attempt = JobAttempt(job, attempts_of(job)[-1])
        self.at_once = self.most_at_once = self.opened = 0
        finder = AttemptFinder(self.scheduler, CLOCK)
        self.asking = NodeQueries(self, GrantSigner(key, CLOCK), finder.of, node_snapshot_of)

    def linked_to(self, node: str) -> str:  # noqa: ARG002
        return "r1"

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[QueueCarrier]:
        node = self.nodes[question.node]
        act = Act.DUMP_STACKS if question.kind is StreamKind.STACKS else Act.READ_FACTS
        digest = digest_of(question.session, question.kind, question.opening)
        node.checker.check(question.grant, act, digest=digest)
        self.at_once += 1
        self.opened += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if not node.serving:
                raise Unavailable(f"Node {question.node} is not linked.")
            async with answered_by(node.serve(question.kind), question.opening) as carrier:
                yield carrier
        finally:
            self.at_once -= 1

    async def facts(
        self, within_s: float = 3.0
    ) -> tuple[tuple[NodeFacts, ...], tuple[NodeUnreachable, ...]]:
        checks, silences = await self.asking.check(self.attempt, within_s=within_s)
        return tuple(each.facts for each in checks if each.facts is not None), silences


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("DIAG-1")
async def test_every_node_tells_all_it_knows(site: Site) -> None:
    facts, silences = await site.facts()
    assert [each.node for each in facts] == ["n1", "n2"]
    assert silences == ()
    first = facts[0]
    assert (first.peers, first.addresses) == ((PEER,), ("10.0.0.1",))
    assert (first.links, first.mounts, first.tasks, first.gpus) == (
        (LINK,), (MOUNT,), (TASK,), (GPU,),
    )  # fmt: skip
    assert (first.clock_ahead_s, first.last_output, first.time) == (-0.5, BEGAN + 1, BEGAN + 60)
    assert first.absences == ()


async def _check_with_a_source_that_hangs(site: Site) -> float:
    async def never() -> NetworkFound:
        await asyncio.Event().wait()
        raise AssertionError

    site.nodes["n1"].network = never
    begun = time.monotonic()
    facts, silences = await site.facts(1.2)
    took_s = time.monotonic() - begun
    assert silences == ()
    assert (facts[0].links, facts[0].mounts) == ((), (MOUNT,))
    assert facts[0].absence(FactKind.LINKS) == FactAbsence(FactKind.LINKS, SILENT)
    assert facts[0].absence(FactKind.TRANSPORT) is not None
    assert facts[1].links == (LINK,)
    return took_s


@pytest.mark.spec("SRC-2")
async def test_a_job_whose_processes_can_not_be_read_says_so_and_the_helper_is_not_asked(
    site: Site,
) -> None:
    node = site.nodes["n1"]
    node.jobs.freeze(42)
    node.refuses = AssertionError()
    facts, silences = await site.facts()
    assert silences == ()
    assert (facts[0].tasks, facts[0].mounts, facts[1].tasks) == ((), (MOUNT,), (TASK,))
    assert facts[0].absence(FactKind.TASKS) == FactAbsence(FactKind.TASKS, UNREADABLE)
    stacks, silent = await site.asking.stacks("s", site.attempt, within_s=5.0)
    assert {each.node for each in stacks} == {"n2"}
    assert [(each.node, each.reason) for each in silent] == [("n1", UNREADABLE)]


@pytest.mark.spec("SRC-2")
async def test_a_source_that_hangs_is_an_absence_and_keeps_nobody(site: Site) -> None:
    await _check_with_a_source_that_hangs(site)


@pytest.mark.timing
@pytest.mark.spec("SRC-2")
async def test_with_a_source_that_hangs_the_check_ends_within_its_time(site: Site) -> None:
    assert await _check_with_a_source_that_hangs(site) < 1.2


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unavailable("lattice-helper does not answer."), "lattice-helper does not answer"),
        (OSError(5, "broken"), "it could not be read"),
    ],
)
async def test_a_source_that_fails_says_why(site: Site, error: Exception, reason: str) -> None:
    async def failing() -> NetworkFound:
        raise error

    site.nodes["n1"].network = failing
    facts, _ = await site.facts()
    absence = facts[0].absence(FactKind.LINKS)
    assert absence is not None
    assert absence.reason == reason


@pytest.mark.spec("DIAG-1")
async def test_what_a_node_measures_comes_with_its_facts(site: Site) -> None:
    (first, _), silences = await site.asking.check(site.attempt, within_s=3.0)
    assert silences == ()
    assert first.snapshot is not None
    assert (first.snapshot.node, first.lacking) == ("n1", "")
    assert [each.value for each in first.snapshot.now.of("memory_used_bytes")] == [5e8]
    assert site.opened == 2, "one stream a node"


async def _raising() -> bytes:
    raise Unavailable("a probe does not answer.")


async def _garbage() -> bytes:
    return b"\xff"


async def _of_another_run() -> bytes:
    now = JobSnapshot(JobIdentity("b", 7, 1, BEGAN - 3600), BEGAN + 60, 30.0, ())
    return LookTell(sight=node_snapshot_message(BEGAN - 3600, None, now)).SerializeToString()


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    ("look", "reason"),
    [
        (_raising, "a probe does not answer"),
        (_garbage, "what it said can't be read"),
        (_nothing, "it measures nothing of this job"),
        (_of_another_run, "it tells of another run of this number"),
    ],
)
async def test_figures_that_are_not_there_say_why_and_the_facts_stay(
    site: Site, look: Callable[[], Awaitable[bytes]], reason: str
) -> None:
    site.nodes["n1"].sight = look
    (first, second), silences = await site.asking.check(site.attempt, within_s=3.0)
    assert silences == ()
    assert (first.snapshot, first.lacking) == (None, reason)
    assert first.facts is not None
    assert first.facts.links == (LINK,)
    assert second.snapshot is not None


async def _check_with_facts_that_come_too_late(site: Site) -> float:
    class Slow(Node):
        def serve(self, kind: StreamKind) -> Serve:
            in_time = super().serve(kind)

            async def serve(session: Session, opening: bytes) -> None:
                await in_time(
                    session, facts_opening(replace(facts_opening_of(opening), within_s=9))
                )

            return serve

    async def never() -> NetworkFound:
        await asyncio.Event().wait()
        raise AssertionError

    slow = site.nodes["n1"]
    slow.__class__ = Slow
    slow.network = never
    begun = time.monotonic()
    (first, second), silences = await site.asking.check(site.attempt, within_s=1.5)
    took_s = time.monotonic() - begun
    assert silences == ()
    assert (first.node, first.facts) == ("n1", None)
    assert first.lacking == "its facts did not come within 1.5 s"
    assert first.snapshot is not None
    assert (second.snapshot is None, second.lacking) == (False, "")
    return took_s


@pytest.mark.spec("SRC-2")
async def test_facts_that_come_too_late_keep_no_figures_back(site: Site) -> None:
    await _check_with_facts_that_come_too_late(site)


@pytest.mark.timing
@pytest.mark.spec("SRC-2")
async def test_with_facts_that_come_too_late_the_check_ends_within_its_time(site: Site) -> None:
    assert await _check_with_facts_that_come_too_late(site) < 1.5


@pytest.mark.spec("SRC-2")
async def test_an_agent_of_before_tells_its_facts_alone(site: Site) -> None:
    class Older(Node):
        def serve(self, kind: StreamKind) -> Serve:
            newer = super().serve(kind)

            async def serve(session: Session, opening: bytes) -> None:
                asked = replace(facts_opening_of(opening), look=False)
                await newer(session, facts_opening(asked))

            return serve

    site.nodes["n1"].__class__ = Older
    (first, _), silences = await site.asking.check(site.attempt, within_s=3.0)
    assert silences == ()
    assert first.facts is not None
    assert (first.snapshot, first.facts.links) == (None, (LINK,))
    assert "older than this server" in first.lacking


@pytest.mark.spec("SRC-2")
async def test_a_node_without_a_link_is_silent_with_the_reason(site: Site) -> None:
    site.nodes["n2"].serving = False
    facts, (silence,) = await site.facts()
    assert [each.node for each in facts] == ["n1"]
    assert (silence.node, silence.reason) == ("n2", "Node n2 is not linked")


@pytest.mark.spec("SRC-2")
async def test_an_earlier_run_of_the_number_is_not_the_one_that_is_meant(site: Site) -> None:
    site.nodes["n1"].jobs = Jobs(BEGAN - 3600)
    site.nodes["n2"].jobs = Jobs()
    facts, silences = await site.facts()
    assert facts == ()
    assert {each.reason for each in silences} == {"it does not know this job"}
    stacks, silences = await site.asking.stacks("alice@site", site.attempt, within_s=3.0)
    assert stacks == ()
    assert {each.reason for each in silences} == {"it does not know this job"}


@pytest.mark.spec("SRC-2")
async def test_what_a_node_says_of_another_run_is_not_believed(site: Site) -> None:
    site.scheduler.allocations = []
    facts, silences = await site.facts()
    assert facts == ()
    assert silences[0].reason == "it tells of another run of this number"


@pytest.mark.spec("DIAG-6")
async def test_stacks_are_told_by_rank_and_who_asked_is_known_there(site: Site) -> None:
    stacks, silences = await site.asking.stacks("alice@site", site.attempt, within_s=5.0)
    assert silences == ()
    assert [(each.node, each.rank) for each in stacks] == [("n1", 1), ("n2", 2)]
    assert stacks[0] == RankStack(
        node="n1", rank=1, pid=42, language=StackLanguage.PYTHON,
        frames=(StackFrame("load\u241b", "/x.py", 8),), state="S",
    )  # fmt: skip
    assert site.nodes["n1"].subjects == ["alice@site"]


@pytest.mark.spec("DIAG-6")
async def test_a_helper_that_refuses_is_a_silence_in_its_words(site: Site) -> None:
    site.nodes["n1"].refuses = DataUnavailable("lattice-helper: job 7 was started again meanwhile.")
    site.nodes["n2"].looks = ()
    stacks, silences = await site.asking.stacks("s", site.attempt, within_s=5.0)
    assert stacks == ()
    assert [each.reason for each in silences] == [
        "lattice-helper: job 7 was started again meanwhile",
        "no process of the job's ranks runs on it",
    ]


async def _give_up_a_node_that_never_ends(site: Site) -> float:
    class Endless(Node):
        def serve(self, kind: StreamKind) -> Serve:  # noqa: ARG002
            async def serve(session: Session, opening: bytes) -> None:
                await asyncio.Event().wait()

            return serve

    slow = site.nodes["n2"]
    slow.__class__ = Endless
    begun = time.monotonic()
    facts, (silence,) = await site.facts(0.6)
    took_s = time.monotonic() - begun
    assert [each.node for each in facts] == ["n1"]
    assert silence.reason == "it did not answer within 0.6 s"
    return took_s


@pytest.mark.spec("SRC-2")
async def test_a_node_that_never_ends_is_given_up(site: Site) -> None:
    await _give_up_a_node_that_never_ends(site)


@pytest.mark.timing
@pytest.mark.spec("SRC-2")
async def test_a_node_that_never_ends_is_given_up_within_a_second_and_a_half(site: Site) -> None:
    assert await _give_up_a_node_that_never_ends(site) < 1.5


@pytest.mark.spec("SRC-2")
async def test_garbage_from_a_node_is_not_a_fact(site: Site) -> None:
    class Babbling(Node):
        def serve(self, kind: StreamKind) -> Serve:  # noqa: ARG002
            async def serve(session: Session, opening: bytes) -> None:
                await session.send(b"\xff\xff", last=True)

            return serve

    site.nodes["n1"].__class__ = Babbling
    facts, (silence,) = await site.facts()
    assert [each.node for each in facts] == ["n2"]
    assert silence.reason == "what it said can't be read"


async def test_many_nodes_are_asked_together_but_not_all_at_once() -> None:
    site = Site("n[1-100]", 100)
    facts, silences = await site.facts(20.0)
    assert (len(facts), silences) == (100, ())
    assert 1 < site.most_at_once <= 64


async def test_a_question_that_can_not_be_read_is_refused() -> None:
    node = Node("n1", SigningKey.generate().public)
    for kind in (StreamKind.FACTS, StreamKind.STACKS):
        with pytest.raises(NotFound):
            await node.serve(kind)(None, b"\xff")  # type: ignore[arg-type]


async def test_the_first_look_at_a_job_is_kept_until_its_end() -> None:
    jobs, looks = Jobs(BEGAN), iter((None, "first"))
    (job,) = jobs.jobs.values()

    async def look() -> str | None:
        return next(looks)

    kept: Baselines[str] = Baselines(jobs, look)
    running = asyncio.create_task(kept.run(), name="first looks")
    try:
        seen = []
        # Whoever begins to listen anew hears of each job as if it had just appeared.
        for event in (JobAppeared(job), JobAppeared(job), JobAppeared(job), NodeJobEnded(job)):
            jobs.events.put_nowait(event)
            while not jobs.events.empty():
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            seen.append(kept.of(job.identity))
        assert seen == [None, "first", "first", None]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
