"""Looks at nodes: in parallel, in time, of the right run, and nothing made up for the silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from lattice.access.grants import GrantChecker, GrantSigner
from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.alert import Alert, AlertRule, Phase, Severity
from lattice.domain.allocation import State
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.grant import Act
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import (
    NodeAlert,
    NodeBack,
    NodeLeftOut,
    NodeMeasured,
    NodeNews,
    NodeOver,
    NodeSnapshot,
    NodeStale,
    NodeUnreachable,
)
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.run_events import NodeEvents, RunEvent, RunEventKind
from lattice.domain.stream import CarrierLost, Lane, Session, StreamKind, StreamQuestion, digest_of
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.telemetry.convert.run_events import events_message
from lattice.features.telemetry.convert.snapshots import (
    Want,
    alert_message,
    node_snapshot_message,
    opening_of,
)
from lattice.features.telemetry.service import node_follow as following
from lattice.features.telemetry.service.node_follow import Means
from lattice.features.telemetry.service.node_news import FollowedNews
from lattice.features.telemetry.service.node_snapshots import AgentSnapshots
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.observe import node_stream
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.eventually import eventually_async
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.echoing_nodes import QueueCarrier, answered_by
from tests.fakes.in_memory_scheduler import InMemoryScheduler

pytestmark = pytest.mark.timeout(180)

CLOCK = SystemClock()
BEGUN = CLOCK.now().replace(microsecond=0) - timedelta(minutes=10)
BEGAN = BEGUN.timestamp() + 0.4


def snapshot(after_s: float, cpu_s: float, *, began: float = BEGAN) -> JobSnapshot:
    readings = (Sample("cpu_seconds_total", cpu_s, began + after_s),)
    return JobSnapshot(JobIdentity("", 7, 0, began), began + after_s, 30.0, readings)


def sight(
    after_s: float = 60.0,
    *firing: Alert,
    began: float = BEGAN,
    judged_after_s: float | None = None,
) -> bytes:
    """`judged_after_s`: when the judge there began to look."""
    now = snapshot(after_s, after_s, began=began)
    judged = None if judged_after_s is None else began + judged_after_s
    told = node_snapshot_message(began, None, now, firing, judged_since=judged)
    return pb.LookTell(sight=told).SerializeToString()


def alert(phase: Phase = Phase.FIRING, subject: str = "") -> Alert:
    return Alert(
        rule=AlertRule.OOM_KILL,
        subject=subject,
        phase=phase,
        severity=Severity.CRITICAL,
        since=BEGAN + 50,
        time=BEGAN + 60,
        text="A process was killed for want of memory.",
    )


def told(alert: Alert) -> bytes:
    return pb.LookTell(alert=alert_message(alert)).SerializeToString()


OVER = pb.LookTell(over=True).SerializeToString()


class Node:
    """One node's agent: says what it is told to say."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.opened = 0
        self.broken = asyncio.Event()
        self.gone = False

    def say(self, *payloads: bytes | None) -> None:
        for each in payloads:
            self.says.put_nowait(each)

    async def serve(self, session: Session, opening: bytes) -> None:
        assert opening_of(opening).job_id == 7
        while (payload := await self.says.get()) is not None:
            await session.send(payload)
        await session.send(b"", last=True)


class Site:
    """The port `NodeStreams` to nodes in memory, with the grants checked as agents do."""

    def __init__(self, nodes: str = "n[1-2]") -> None:
        self.nodes = {f"n{number}": Node() for number in range(1, 4)}
        self.asked: list[StreamQuestion] = []
        self.open_now = 0
        self.scheduler = InMemoryScheduler(CLOCK)
        self.scheduler.accounts = ACCOUNTS
        job = allocation(7, "alice", "research", submitted=BEGUN, nodes=nodes)
        self.scheduler.allocations = [job]
        self.attempt = JobAttempt(job, attempts_of(job)[-1])
        key = SigningKey.generate()
        self._checkers = {name: GrantChecker(name, CLOCK, [key.public]) for name in self.nodes}
        self.interval_s = 30.0
        self.means = Means(
            nodes=self,
            signer=GrantSigner(key, CLOCK),
            clock=CLOCK,
            find_attempt=AttemptFinder(self.scheduler, CLOCK).of,
            modes=lambda name: ModeInForce(
                allocation=name, mode=Mode.PROD, interval_s=self.interval_s
            ),
            patience=lambda interval_s: 2 * interval_s,
        )
        self.looks = AgentSnapshots(self.means)

    def linked_to(self, node: str) -> str:  # noqa: ARG002
        return "r1"

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[QueueCarrier]:
        self.asked.append(question)
        digest = digest_of(question.session, StreamKind.METRICS, question.opening)
        self._checkers[question.node].check(question.grant, Act.READ_METRICS, digest=digest)
        node = self.nodes[question.node]
        node.opened += 1
        if node.gone:
            raise Unavailable(f"Node {question.node} is not linked.")
        self.open_now += 1
        try:
            async with answered_by(node.serve, question.opening) as carrier:
                yield _Breakable(carrier, node.broken)
        finally:
            self.open_now -= 1


class _Breakable(QueueCarrier):
    def __init__(self, carrier: QueueCarrier, broken: asyncio.Event) -> None:
        super().__init__(carrier._inwards, carrier._outwards)
        self._broken = broken

    async def receive(self) -> bytes:
        receiving = asyncio.ensure_future(super().receive())
        breaking = asyncio.ensure_future(self._broken.wait())
        try:
            await asyncio.wait((receiving, breaking), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                return receiving.result()
            raise CarrierLost("cut")
        finally:
            receiving.cancel()
            breaking.cancel()


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(node_stream, "_PAUSES_S", (0.01,))
    monkeypatch.setattr(following, "_OVER_PAUSE_S", 0.01)
    site = Site()
    yield site
    await site.looks.aclose()


@pytest.mark.spec("WATCH-1")
async def test_every_node_is_looked_at_once(site: Site) -> None:
    for name in ("n1", "n2"):
        site.nodes[name].say(sight(60.0, alert()), None)
    sights, silences = await site.looks.read(site.attempt)
    assert sorted(each.node for each in sights) == ["n1", "n2"]
    assert silences == ()
    assert sights[0].now.of("cpu_seconds_total")[0].value == 60.0
    assert sights[0].firing == (alert(),)
    assert {each.lane for each in site.asked} == {Lane.INTERACTIVE}
    asked = opening_of(site.asked[0].opening)
    assert (asked.want, asked.started) == (Want.ONCE, BEGUN.timestamp())


@pytest.mark.spec("SRC-2")
async def test_who_does_not_answer_in_time_is_a_silence_with_words(site: Site) -> None:
    site.nodes["n1"].say(sight(), None)
    sights, silences = await site.looks.read(site.attempt, within_s=1.5)
    assert [each.node for each in sights] == ["n1"]
    assert [(each.node, each.reason) for each in silences] == [
        ("n2", "it did not answer within 1.5 s")
    ]


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ((pb.LookTell().SerializeToString(), None), "does not know this job"),
        ((None,), "does not know this job"),
        ((OVER, None), "gone from it"),
        ((b"\xff\xff garbage", None), "can't be read"),
        ((sight(began=BEGAN - 7200), None), "another run"),
    ],
)
async def test_what_is_no_measurement_of_this_run_is_a_silence(
    site: Site, says: tuple[bytes | None, ...], reason: str
) -> None:
    site.nodes["n1"].say(*says)
    sights, (silence,) = await site.looks.read(site.attempt, only={"n1"})
    assert sights == ()
    assert reason in silence.reason


@pytest.mark.spec("SRC-2")
async def test_a_node_that_is_not_linked_is_told_in_its_words(site: Site) -> None:
    site.nodes["n1"].gone = True
    _, (silence,) = await site.looks.read(site.attempt, only=["n1"])
    assert silence.reason == "Node n1 is not linked"


def happened(began: float = BEGAN) -> bytes:
    event = RunEvent(kind=RunEventKind.JOB, time=began + 5, text="done")
    run = NodeEvents(node="", began=began, since=began, events=(event,))
    return events_message((run,)).SerializeToString()


async def test_every_node_is_asked_what_happened(site: Site) -> None:
    site.nodes["n1"].say(happened(), None)
    site.nodes["n2"].say(happened(BEGAN - 7200), None)
    (found,), (silence,) = await site.looks.events(site.attempt)
    assert (found.node, found.events[0].text) == ("n1", "done")
    assert (silence.node, silence.reason) == ("n2", "it tells of another run of this number")
    assert {opening_of(each.opening).want for each in site.asked} == {Want.EVENTS}


async def test_a_node_that_does_not_know_the_job_has_no_events(site: Site) -> None:
    site.nodes["n1"].say(events_message(()).SerializeToString(), None)
    site.nodes["n2"].gone = True
    found, silences = await site.looks.events(site.attempt)
    assert found == ()
    assert [each.reason for each in silences] == [
        "it does not know this job",
        "Node n2 is not linked",
    ]


async def test_a_job_without_nodes_has_nobody_to_ask(site: Site) -> None:
    waiting = allocation(9, "alice", "research", nodes="", state=State.PENDING)
    attempt = JobAttempt(waiting, attempts_of(waiting)[-1])
    assert await site.looks.read(attempt) == ((), ())


async def take(news: AsyncIterator[NodeNews], count: int) -> list[NodeNews]:
    async with asyncio.timeout(60):
        return [await anext(news) for _ in range(count)]


async def until(holds: Callable[[], bool]) -> None:
    await eventually_async(holds)


@pytest.mark.spec("WATCH-1")
async def test_what_nodes_tell_comes_as_it_is_told(site: Site) -> None:
    async with site.looks.follow(site.attempt) as news:
        site.nodes["n1"].say(sight(60.0), told(alert()), sight(90.0, alert()))
        first, second, third = await take(news, 3)
        assert isinstance(first, NodeMeasured)
        assert second == NodeAlert("n1", alert())
        assert isinstance(third, NodeMeasured)
        site.nodes["n2"].say(sight(60.0))
        (other,) = await take(news, 1)
        assert isinstance(other, NodeMeasured)
        assert other.snapshot.node == "n2"
        assert {each.lane for each in site.asked} == {Lane.BULK}


@pytest.mark.spec("WATCH-1")
async def test_one_stream_a_node_is_shared_and_who_joins_late_is_told_how_it_stands(
    site: Site,
) -> None:
    async with site.looks.follow(site.attempt) as first:
        site.nodes["n1"].say(sight(60.0), told(alert()))
        site.nodes["n2"].say(sight(60.0), OVER, None)
        await take(first, 4)
        async with site.looks.follow(site.attempt) as second:
            joined = await take(second, 2)
            assert isinstance(joined[0], NodeMeasured)
            assert joined[0].snapshot.firing == (alert(),)
            assert joined[1] == NodeOver("n2")
            site.nodes["n1"].say(sight(90.0, alert()))
            for news in (first, second):
                (each,) = await take(news, 1)
                assert isinstance(each, NodeMeasured)
        assert site.nodes["n1"].opened == 1
        assert site.looks.followed == 2


@pytest.mark.spec("WATCH-1", "WATCH-2")
async def test_an_alert_is_told_once_for_each_of_its_phases(site: Site) -> None:
    async with site.looks.follow(site.attempt) as news:
        site.nodes["n1"].say(
            sight(60.0, alert()),
            told(alert()),
            sight(90.0, alert()),
            told(alert(Phase.CLEARED)),
            told(alert(Phase.CLEARED)),
            sight(120.0),
        )
        found = await take(news, 5)
        assert [type(each) for each in found] == [
            NodeMeasured,
            NodeAlert,
            NodeMeasured,
            NodeAlert,
            NodeMeasured,
        ]
        assert isinstance(found[3], NodeAlert)
        assert found[3].alert.phase is Phase.CLEARED


@pytest.mark.spec("WATCH-1")
async def test_a_broken_connection_is_told_at_once_and_the_return_too(site: Site) -> None:
    node = site.nodes["n1"]
    async with site.looks.follow(site.attempt) as news:
        node.say(sight(60.0, alert(), alert(subject="GPU-1")))
        await take(news, 3)
        node.gone = True
        node.broken.set()
        (stale,) = await take(news, 1)
        assert isinstance(stale, NodeStale)
        assert (stale.silence.node, stale.silence.since) == ("n1", BEGAN + 60)
        # The session is gone, and one of the alerts has cleared; the judge was there meanwhile.
        await until(lambda: node.opened >= 2)
        node.say(sight(90.0, alert(), judged_after_s=1))
        node.broken.clear()
        node.gone = False
        back, measured, cleared = await take(news, 3)
        assert isinstance(back, NodeBack)
        assert isinstance(measured, NodeMeasured)
        assert isinstance(cleared, NodeAlert)
        assert (cleared.alert.subject, cleared.alert.phase) == ("GPU-1", Phase.CLEARED)
        assert "not heard" in cleared.alert.text


@pytest.mark.spec("WATCH-2")
async def test_an_agent_begun_anew_clears_nothing_that_it_has_forgotten(site: Site) -> None:
    node = site.nodes["n1"]
    async with site.looks.follow(site.attempt) as news:
        node.say(sight(60.0, alert(), judged_after_s=1))
        await take(news, 2)
        node.gone = True
        node.broken.set()
        await take(news, 1)
        await until(lambda: node.opened >= 2)
        node.say(sight(90.0, judged_after_s=80))
        node.broken.clear()
        node.gone = False
        _, measured, unknown = await take(news, 3)
        assert isinstance(measured, NodeMeasured)
        assert isinstance(unknown, NodeAlert)
        assert unknown.alert.phase is Phase.UNKNOWN
        assert unknown.alert.text == f"The node looks anew. It was: {alert().text}"
        async with site.looks.follow(site.attempt) as second:
            (joined,) = await take(second, 1)
            assert isinstance(joined, NodeMeasured)
            assert [each.phase for each in joined.snapshot.firing] == [Phase.UNKNOWN]
        node.say(sight(120.0, judged_after_s=80), sight(200.0, judged_after_s=80))
        *_, cleared = await take(news, 3)
        assert isinstance(cleared, NodeAlert)
        assert cleared.alert.phase is Phase.CLEARED


@pytest.mark.spec("WATCH-1", "SRC-2")
async def test_an_alert_before_the_first_sight_is_told_when_it_is_known_whose_it_is(
    site: Site,
) -> None:
    async with site.looks.follow(site.attempt) as news:
        site.nodes["n1"].say(told(alert()), sight(60.0, alert()))
        first, second = await take(news, 2)
        assert first == NodeAlert("n1", alert())
        assert isinstance(second, NodeMeasured)
        site.nodes["n2"].say(told(alert()), sight(60.0, alert(), began=BEGAN - 7200))
        (other,) = await take(news, 1)
        assert isinstance(other, NodeStale), "of another run nothing is told"


async def test_a_stream_is_closed_as_soon_as_it_is_answered(site: Site) -> None:
    site.nodes["n1"].say(sight(60.0))
    await site.looks.read(site.attempt, only={"n1"})
    assert site.open_now == 0, "though the node goes on"


@pytest.mark.spec("WATCH-1")
async def test_a_node_that_misses_two_intervals_is_stale(site: Site) -> None:
    site.interval_s = 0.05
    quick = JobSnapshot(JobIdentity("", 7, 0, BEGAN), BEGAN + 60, 0.05, snapshot(60, 1).readings)
    payload = pb.LookTell(sight=node_snapshot_message(BEGAN, None, quick)).SerializeToString()
    async with site.looks.follow(site.attempt) as news:
        site.nodes["n1"].say(payload)
        site.nodes["n2"].gone = True
        found = [each for each in await take(news, 3) if not isinstance(each, NodeBack)]
        stale = [each.silence for each in found if isinstance(each, NodeStale)]
        assert {each.node for each in stale} == {"n1", "n2"}
        assert (
            "no measurement for 0.1 s" in next(each for each in stale if each.node == "n1").reason
        )


@pytest.mark.spec("WATCH-1")
async def test_the_job_leaves_a_node_and_may_come_back(site: Site) -> None:
    node = site.nodes["n1"]
    async with site.looks.follow(site.attempt) as news:
        node.say(sight(60.0), OVER, None)
        assert (await take(news, 2))[1] == NodeOver("n1")
        node.say(OVER, None)
        await until(lambda: node.opened >= 3)
        node.say(sight(120.0))
        (again,) = await take(news, 1)
        assert isinstance(again, NodeMeasured)


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "payload", [b"\xff\xff", sight(began=BEGAN - 7200)], ids=["no message", "another life"]
)
async def test_nonsense_is_a_silence_and_never_a_number(site: Site, payload: bytes) -> None:
    async with site.looks.follow(site.attempt) as news:
        site.nodes["n1"].say(payload)
        (stale,) = await take(news, 1)
        assert isinstance(stale, NodeStale)
        site.nodes["n1"].say(sight(60.0))
        back, measured = await take(news, 2)
        assert isinstance(back, NodeBack)
        assert isinstance(measured, NodeMeasured)


async def test_a_node_cannot_fill_the_server_with_alerts(site: Site) -> None:
    async with site.looks.follow(site.attempt) as news:
        many = [told(alert(subject=str(each))) for each in range(300)]
        site.nodes["n1"].say(sight(60.0), *many)
        found = await take(news, 258)
        assert isinstance(found[-1], NodeStale)
        assert "more alerts" in found[-1].silence.reason
        site.nodes["n2"].say(*many)
        unsaid = await take(news, 2)
        stale = [each.silence.node for each in unsaid if isinstance(each, NodeStale)]
        assert stale == ["n2"], "nor with such that are of nobody knows which run"


@pytest.mark.spec("WATCH-1")
async def test_of_a_node_with_too_many_alerts_none_is_reported_twice_and_each_end_is(
    site: Site,
) -> None:
    alerts = [alert(subject=f"{each:03}") for each in range(257)]
    node = site.nodes["n1"]
    async with site.looks.follow(site.attempt) as news:
        node.say(sight(60.0, *alerts, judged_after_s=1))
        _, *first, stale = await take(news, 258)
        assert first == [NodeAlert("n1", each) for each in alerts[:256]]
        assert isinstance(stale, NodeStale)
        node.say(sight(90.0, *alerts[1:], judged_after_s=1))
        back, measured, cleared, added = await take(news, 4)
        assert isinstance(back, NodeBack)
        assert isinstance(measured, NodeMeasured)
        assert isinstance(cleared, NodeAlert)
        assert (cleared.alert.subject, cleared.alert.phase) == ("000", Phase.CLEARED)
        assert added == NodeAlert("n1", alerts[256])


@pytest.mark.spec("WATCH-1")
async def test_a_slow_follower_loses_measurements_and_no_alert() -> None:
    lost: list[int] = []
    slow = FollowedNews(most=5, on_lost=lambda: lost.append(1))
    measured = [
        NodeMeasured(NodeSnapshot(node="n1", before=None, now=snapshot(float(each), float(each))))
        for each in range(20)
    ]
    alerts = [NodeAlert("n1", alert(subject=str(each))) for each in range(20)]
    for number, each in zip(measured, alerts, strict=True):
        slow.give(number)
        slow.give(each)
    slow.give(NodeStale(NodeUnreachable("n1", "x")))
    found = [await anext(slow) for _ in range(25)]
    assert [each for each in found if isinstance(each, NodeAlert)] == alerts
    assert [each for each in found if isinstance(each, NodeMeasured)] == [
        *measured[:2],
        measured[-1],
    ]
    assert [each for each in found if isinstance(each, NodeLeftOut)] == [NodeLeftOut("n1", 17)]
    assert len(lost) == 17
    # Of one alert that goes to and fro the newest change is kept.
    for each in range(20):
        slow.give(NodeAlert("n1", alert(Phase.CLEARED if each % 2 else Phase.FIRING)))
    last = [await anext(slow) for _ in range(5)][-1]
    assert isinstance(last, NodeAlert)
    assert last.alert.phase is Phase.CLEARED


@pytest.mark.spec("WATCH-1")
async def test_a_full_queue_has_the_newest_of_each_node() -> None:
    slow = FollowedNews(most=5)

    def measured(number: int, at: float) -> NodeMeasured:
        now = snapshot(at, at)
        return NodeMeasured(NodeSnapshot(node=f"n{number}", before=None, now=now))

    for at in range(1, 4):
        for number in range(50):
            slow.give(measured(number, float(at)))
    news = [await anext(slow) for _ in range(100)]
    newest = {each.node: each.snapshot.now.time for each in news if isinstance(each, NodeMeasured)}
    assert newest == {f"n{number}": measured(number, 3.0).snapshot.now.time for number in range(50)}
    assert sum(each.count for each in news if isinstance(each, NodeLeftOut)) == 100
    # What a node measured after it was away is not put before its absence.
    slow.give(measured(0, 1.0))
    for _ in range(5):
        slow.give(NodeAlert("n1", alert(subject=str(_))))
    slow.give(NodeStale(NodeUnreachable("n0", "x")))
    slow.give(measured(0, 2.0))
    kinds = [type(await anext(slow)) for _ in range(8)]
    assert kinds == [NodeMeasured, *[NodeAlert] * 5, NodeStale, NodeMeasured]


async def test_when_nobody_follows_any_more_the_streams_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.looks._follows._streams, "_idle_s", 0.01)
    async with site.looks.follow(site.attempt):
        assert site.looks.followed == 2
    await until(lambda: site.looks.followed == 0)


@pytest.mark.spec("WATCH-2")
async def test_who_wants_only_alerts_asks_for_them_and_shares_what_is_there(site: Site) -> None:
    async with site.looks.follow(site.attempt, alerts_only=True) as alerts:
        node = site.nodes["n1"]
        node.say(sight(60.0), told(alert()))
        measured, told_alert = await take(alerts, 2)
        assert isinstance(measured, NodeMeasured)
        assert told_alert == NodeAlert("n1", alert())
        openings = [opening_of(each.opening) for each in site.asked]
        assert {(each.rows, each.alerts_only) for each in openings} == {(True, True)}
        async with site.looks.follow(site.attempt):
            await until(lambda: site.nodes["n1"].opened == 2)
            assert not opening_of(site.asked[-1].opening).alerts_only
            async with site.looks.follow(site.attempt, alerts_only=True):
                assert site.looks.followed == 4, "it shares the streams with measurements"
