"""Events of ended attempts are stored once, by whichever server is there, and read from there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.allocation import State
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.domain.run_events import (
    MOST_STORED,
    NodeEvents,
    RunEvent,
    RunEventKind,
    events_key,
    newest,
)
from lattice.features.timeline.model import EventKind
from lattice.features.timeline.service.run_events import (
    LATEST_S,
    SETTLE_S,
    AttemptEvents,
    RunEventLoop,
    StoredRunEvents,
)
from lattice.foundation.ended_attempts import OTHERS_AFTER_S
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import RECORDED, ManualClock
from tests.fakes.node_looks import InMemoryNodeLooks

BEGUN = RECORDED - timedelta(hours=2)
BEGAN = BEGUN.timestamp()
IDLE = RunEvent(
    kind=RunEventKind.ALERT, time=BEGAN + 60, ended=BEGAN + 300, name="gpu_idle", text="idle"
)
DONE = RunEvent(
    kind=RunEventKind.JOB,
    time=BEGAN + 200,
    name="epoch",
    text="epoch 1 done",
    attributes=(("loss", "0.5"),),
)


def of_node(*events: RunEvent, node: str = "n1", since: float = BEGAN) -> NodeEvents:
    return NodeEvents(node=node, began=BEGAN, since=since, events=events)


class Site:
    """Job 42 of alice on n1 and n2, which ended a moment ago."""

    def __init__(self, *, is_running: bool = False) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        job = allocation(
            42,
            "alice",
            "research",
            submitted=BEGUN,
            started=BEGUN,
            ended=None if is_running else RECORDED,
            state=State.RUNNING if is_running else State.COMPLETED,
            nodes="n[1-2]",
        )
        self.scheduler.allocations = [job]
        self.attempt = JobAttempt(job, attempts_of(job)[-1])
        self.objects = InMemoryObjectStore(self.clock)
        self.stored = StoredRunEvents(self.objects)
        self.nodes = InMemoryNodeLooks()
        self.nodes.happened = [of_node(IDLE, DONE), of_node(node="n2")]
        self.reader = AttemptEvents(self.nodes, self.stored, self.clock)

    def replica(self, name: str = "r1", *others: str, sensitive: bool = False) -> RunEventLoop:
        return RunEventLoop(
            self.scheduler,
            self.nodes,
            self.stored,
            self.clock,
            name,
            lambda: (name, *others),
            lambda _: sensitive,
        )

    @property
    def key(self) -> str:
        return events_key(self.attempt)

    async def read(self) -> tuple[list[str], tuple[str, ...]]:
        part = await self.reader.of(self.attempt)
        return [each.text for each in part.events], part.missing


SHOWN = ["idle", "epoch 1 done (loss 0.5)"]


async def test_past_alerts_and_reported_events_of_a_running_job_come_from_its_nodes() -> None:
    site = Site(is_running=True)
    part = await site.reader.of(site.attempt)
    assert [(each.kind, each.node, each.name, each.lasts) for each in part.events] == [
        (EventKind.ALERT, "n1", "gpu_idle", False),
        (EventKind.JOB, "n1", "epoch", False),
    ]
    assert [each.text for each in part.events] == SHOWN
    assert part.events[0].time == BEGUN + timedelta(seconds=60)
    assert part.events[0].ended == BEGUN + timedelta(seconds=300)
    assert part.missing == ()


async def test_they_are_stored_after_the_end_and_the_nodes_are_not_asked_again() -> None:
    site = Site()
    assert await site.read() == (SHOWN, ()), "between the end and the document the nodes know"
    loop = site.replica()
    await loop.run_round()
    assert loop.queue.waiting == 1
    site.clock.advance(SETTLE_S + 1)
    await loop.run_round()
    assert (loop.queue.waiting, loop.written_total) == (0, 1)
    site.nodes.happened = []
    site.clock.advance(10 * LATEST_S)
    assert await site.read() == (SHOWN, ())
    assert events_key(site.attempt).startswith("physics/research/42/logs/")


async def test_a_node_that_does_not_answer_is_waited_for_and_then_named() -> None:
    site = Site()
    site.nodes.silences["n2"] = NodeUnreachable("n2", "it is not linked")
    loop = site.replica()
    site.clock.advance(SETTLE_S + 1)
    await loop.run_round()
    assert loop.written_total == 0
    site.clock.advance(LATEST_S)
    await loop.run_round()
    assert loop.written_total == 1
    assert await site.read() == (SHOWN, ("Events of node n2: it is not linked.",))


async def test_one_server_writes_and_another_takes_over() -> None:
    site = Site()
    servers = {each: site.replica(each, "r1", "r2") for each in ("r1", "r2")}
    for each in servers.values():
        await each.run_round()
    site.clock.advance(SETTLE_S + 1)
    first = next(name for name, each in servers.items() if each.queue.is_mine(site.key))
    del servers[first]
    (other,) = servers.values()
    await other.run_round()
    assert other.written_total == 0
    site.clock.advance(OTHERS_AFTER_S)
    await other.run_round()
    assert other.written_total == 1
    again = site.replica(first)
    await again.run_round()
    assert (again.written_total, again.queue.waiting) == (0, 0)


async def test_nothing_is_stored_of_sensitive_work() -> None:
    site = Site()
    loop = site.replica(sensitive=True)
    site.clock.advance(3600)
    await loop.run_round()
    assert (loop.queue.waiting, loop.written_total, site.objects.puts) == (0, 0, 0)
    events, (missing,) = await site.read()
    assert events == []
    assert "not kept" in missing


@pytest.mark.parametrize("document", [b"", b"{", b'{"format": 1}', b"[" * 5000])
async def test_bytes_that_are_no_document_are_as_none(document: bytes) -> None:
    site = Site()
    await site.objects.put(events_key(site.attempt), document)
    site.clock.advance(2 * LATEST_S)
    events, (missing,) = await site.read()
    assert events == []
    assert "not kept" in missing


async def test_an_object_store_that_is_away_is_named() -> None:
    site = Site()
    site.objects.away = True
    events, (missing,) = await site.read()
    assert events == []
    assert missing.startswith("Events of attempt 1: ")
    site.clock.advance(SETTLE_S + 1)
    loop = site.replica()
    with pytest.raises(Unavailable):
        await loop.run_round()
    site.objects.away = False
    site.clock.advance(61)
    await loop.run_round()
    assert loop.written_total == 1


async def test_what_a_restarted_agent_has_lost_is_named() -> None:
    site = Site(is_running=True)
    site.nodes.happened = [replace(of_node(IDLE, since=BEGAN + 3600), dropped=7)]
    _, missing = await site.read()
    begun = f"{BEGUN + timedelta(hours=1):%Y-%m-%d %H:%M:%SZ}"
    assert missing == (
        f"Events of node n1 before {begun} are not known: its agent was started again.",
        "7 older events of node n1 are not kept.",
    )


async def test_many_silent_nodes_are_few_sentences() -> None:
    site = Site(is_running=True)
    for number in range(100):
        name = f"n{number}"
        site.nodes.silences[name] = NodeUnreachable(name, "it is not linked")
    _, missing = await site.read()
    assert len(missing) == 4
    assert missing[-1] == "97 more nodes lack events."


def _switch(name: str, after_s: float) -> RunEvent:
    return RunEvent(kind=RunEventKind.MODE, time=BEGAN + after_s, name=name)


async def test_a_switch_of_the_mode_is_one_event_for_all_nodes() -> None:
    site = Site(is_running=True)
    site.nodes.happened = [
        of_node(_switch("debug", 60), _switch("prod", 360), _switch("debug", 400)),
        of_node(_switch("debug", 62), _switch("prod", 385), _switch("new", 800), node="n2"),
    ]
    part = await site.reader.of(site.attempt)
    assert [
        (each.kind, each.node, each.text, (each.time - BEGUN).total_seconds())
        for each in part.events
    ] == [
        (EventKind.MODE, "", "measured in debug, every 1 s", 60),
        (EventKind.MODE, "", "measured in prod, every 30 s", 360),
        (EventKind.MODE, "", "measured in debug, every 1 s", 400),
        (EventKind.MODE, "", "measured in new", 800),
    ]


def _many(kind: RunEventKind, count: int, begin: int = 0) -> Iterable[RunEvent]:
    return (RunEvent(kind=kind, time=BEGAN + begin + at, name=str(at)) for at in range(count))


@pytest.mark.parametrize(("alerts", "reported"), [(10, 5000), (5000, 10), (5000, 5000), (3, 4)])
def test_the_newest_are_stored_and_neither_kind_pushes_the_other_out(
    alerts: int, reported: int
) -> None:
    # The job reports later than any alert.
    nodes = [
        of_node(*_many(RunEventKind.ALERT, alerts)),
        of_node(*_many(RunEventKind.JOB, reported, 10_000), node="n2"),
    ]
    kept = newest(nodes)
    counts = [len(each.events) for each in kept]
    assert sum(counts) == min(alerts + reported, MOST_STORED)
    assert counts[0] >= min(alerts, MOST_STORED // 2)
    assert counts[1] >= min(reported, MOST_STORED // 2)
    assert [each.dropped for each in kept] == [alerts - counts[0], reported - counts[1]]
    for each in kept:
        assert [event.time for event in each.events] == sorted(event.time for event in each.events)
    assert kept[0].events[-1] == nodes[0].events[-1]
