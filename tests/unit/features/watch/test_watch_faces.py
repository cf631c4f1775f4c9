"""A whole server is watched over REST and over gRPC, and the SDK reads what it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from grpc import aio

from lattice.base.clock import SystemClock
from lattice.base.errors import UsageError
from lattice.client import Client, Settings, SyncClient
from lattice.client.tokens import FixedToken
from lattice.domain.alert import Phase, Severity
from lattice.domain.allocation import State
from lattice.domain.measured import Shown
from lattice.domain.node_snapshot import NodeMeasured
from lattice.features.watch import operations
from lattice.features.watch.model import WatchAlert, WatchNote, WatchNoteKind, WatchRecord
from lattice.features.watch.stream_dedup import WatchDeduplicator
from lattice.server.listeners.composition import Faces
from lattice.wire.convert import value_of
from lattice.wire.v1 import watch_pb2 as pb
from lattice.wire.v1 import watch_pb2_grpc
from tests.fakes.cluster import populated
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.logs import event, streamed
from tests.fakes.node_looks import InMemoryNodeLooks, alert, card, sight, snapshot
from tests.fakes.server import bearer, composed, token
from tests.fakes.web import Answer, Request, Web, web


class Running:
    """A server on which alice's job 1 runs, measures, and ends when it is told to."""

    def __init__(self) -> None:
        self.scheduler: InMemoryScheduler = populated(SystemClock())
        self.looks = InMemoryNodeLooks()
        before = snapshot(60, *card(60, used=97))
        now = snapshot(90, *card(90, used=97))
        self.looks.tell(NodeMeasured(sight("n1", now, before, firing=(alert(),))))
        self.faces: Faces = composed(self.scheduler, looks=self.looks)

    async def end_when_followed(self) -> None:
        while not self.looks.followers:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        jobs = self.scheduler.allocations
        jobs[0] = replace(jobs[0], state=State.COMPLETED, ended=SystemClock().now())


@pytest.fixture
async def running() -> Running:
    return Running()


@pytest.fixture
async def rest(running: Running) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=running.faces.rest)
    async with httpx2.AsyncClient(transport=transport, base_url="http://lattice") as client:
        yield client


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line[1:])
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


@pytest.mark.spec("WATCH-1")
async def test_events_over_rest(running: Running, rest: httpx2.AsyncClient) -> None:
    ending = asyncio.create_task(running.end_when_followed())
    answer = await rest.get(
        "/v1/allocations/1/watch?metrics=gpu_utilization&metrics=cpu_utilization",
        headers=bearer("sub-alice", preferred_username="alice"),
    )
    await ending
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = events(answer.text)
    kinds = [name for name, _ in told]
    assert kinds[:2] == ["note", "state"]
    assert kinds[-2:] == ["ended", "end"]
    (fired,) = [data for name, data in told if name == "alert"]
    assert (fired["rule"], fired["phase"], fired["value"]) == ("gpu_idle", "firing", 3)
    (measured,) = [data for name, data in told if name == "measured"]
    gpu, cpu = measured["summary"]
    assert (gpu["metric"], gpu["value"], gpu["source"]) == (
        "gpu_utilization",
        97,
        "host_local_probe",
    )
    assert cpu["value"] is None
    assert cpu["reason"]


@pytest.mark.parametrize("question", ["metrics=nonsense", "cursor=nonsense", "alerts_only=maybe"])
async def test_what_makes_no_sense_is_refused_as_json(
    rest: httpx2.AsyncClient, question: str
) -> None:
    answer = await rest.get(
        f"/v1/allocations/1/watch?{question}",
        headers=bearer("sub-alice", preferred_username="alice"),
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "usage"


@pytest.mark.spec("WATCH-1")
async def test_messages_over_grpc(running: Running, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/grpc.sock"
    running.faces.grpc.add_insecure_port(address)
    await running.faces.grpc.start()
    ending = asyncio.create_task(running.end_when_followed())
    metadata = (("authorization", f"Bearer {token('sub-alice', preferred_username='alice')}"),)
    async with aio.insecure_channel(address) as channel:
        stub: Any = watch_pb2_grpc.WatchServiceStub(channel)
        call = stub.StreamMetrics(
            pb.StreamMetricsRequest(id="1", metrics=["gpu_utilization", "memory_used"] * 2),
            metadata=metadata,
        )
        told = [record async for record in call]
    await ending
    await running.faces.grpc.stop(None)
    by_kind = {each.WhichOneof("record"): each for each in told}
    assert told[0].cursor
    assert told[-1].ended.state == "completed"
    assert by_kind["alert"].alert.value == 3
    gpu, memory = by_kind["measured"].measured.summary
    assert gpu.value == 97
    assert not memory.HasField("value")
    assert memory.reason


def test_a_metric_that_is_none_over_grpc() -> None:
    asked = pb.StreamMetricsRequest(id="1", metrics=["gpu_utilization"])
    assert value_of(asked, operations.WatchRequest).metrics == (Shown.GPU_UTILIZATION,)
    with pytest.raises(UsageError, match="nonsense"):
        value_of(pb.StreamMetricsRequest(id="1", metrics=["nonsense"]), operations.WatchRequest)


TIME = "2026-11-15T14:02:11Z"
FIRING: dict[str, Any] = {
    "type": "alert", "node": "n1", "rule": "xid", "subject": "GPU-1", "phase": "firing",
    "severity": "critical", "since": TIME, "time": TIME, "words": "XID 79.",
}  # fmt: skip
STATE = {"type": "state", "allocation": "42", "state": "running", "attempt": 1, "time": TIME}
ENDED = {"type": "ended", "allocation": "42", "state": "completed", "attempt": 1, "time": TIME}
END = b"event: end\ndata: {}\n\n"
PATH = "/v1/allocations/42/watch"


@pytest.fixture
def server() -> AsyncIterator[Web] | Any:
    with web({}) as found:
        yield found


def taken(door: str, server: Web) -> list[WatchRecord]:
    settings, tokens = Settings((server.url,)), FixedToken("t0k3n")
    if door == "blocking":
        with SyncClient(settings, tokens=tokens, environment={}) as client:
            return list(client.watch("42", metrics=("gpu_utilization",)))

    async def run() -> list[WatchRecord]:
        async with Client(settings, tokens=tokens, environment={}) as client:
            return [record async for record in client.watch("42", metrics=("gpu_utilization",))]

    return asyncio.run(run())


@pytest.mark.spec("WATCH-1", "CLI-3")
@pytest.mark.parametrize("door", ["blocking", "async"])
def test_the_sdk_goes_on_where_a_server_died_and_tells_no_alert_twice(
    server: Web, door: str
) -> None:
    cleared = FIRING | {"phase": "cleared", "lasted_s": 4}
    turns = [
        streamed([event(STATE), event(FIRING, "c-1")], cut=True),
        streamed([event(STATE), event(FIRING), event(cleared, "c-2"), event(ENDED), END]),
    ]

    def answer(_: Request) -> Answer:
        return turns.pop(0)

    server.routes[PATH] = answer
    told = taken(door, server)
    assert [each.type for each in told] == ["state", "alert", "note", "note", "alert", "ended"]
    assert [each.phase for each in told if each.type == "alert"] == [Phase.FIRING, Phase.CLEARED]
    first, second = server.requests
    assert first.query == {"metrics": ["gpu_utilization"]}
    assert second.query == {"metrics": ["gpu_utilization"], "cursor": ["c-1"]}


def test_signs_of_life_are_for_who_asks() -> None:
    alive = WatchNote(kind=WatchNoteKind.ALIVE, time=SystemClock().now())
    assert list(WatchDeduplicator().record(alive)) == []
    assert list(WatchDeduplicator().alive(alive.time)) == []
    reading = WatchDeduplicator(heartbeats=True)
    assert list(reading.record(alive)) == [alive]
    assert [each.type for each in reading.alive(alive.time)] == ["note"]


class TestWhatIsOfOneMoment:
    """Comes together, whatever of it is news."""

    def alert(self, node: str, *, follows: bool) -> WatchAlert:
        now = SystemClock().now()
        return WatchAlert(
            node=node, rule="gpu_idle", phase=Phase.FIRING, severity=Severity.WARNING,
            since=now, time=now, words="It is idle.", follows=follows,
        )  # fmt: skip

    def test_it_is_held_until_it_is_whole(self) -> None:
        reading = WatchDeduplicator()
        first, second = self.alert("n1", follows=True), self.alert("n2", follows=False)
        assert list(reading.record(first)) == []
        assert list(reading.record(second)) == [first, second]

    def test_an_end_that_is_no_news_ends_it_too(self) -> None:
        reading = WatchDeduplicator()
        list(reading.record(self.alert("n9", follows=False)))
        first = self.alert("n1", follows=True)
        list(reading.record(first))
        assert list(reading.record(self.alert("n9", follows=False))) == [
            replace(first, follows=False)
        ]

    def test_what_was_held_is_not_lost_with_the_connection(self) -> None:
        reading = WatchDeduplicator()
        list(reading.record(self.alert("n1", follows=True)))
        told = list(reading.lost("it went away", SystemClock().now()))
        assert [each.type for each in told] == ["alert", "note"]
        again = reading.record(self.alert("n1", follows=False))
        assert list(again) == []


def test_a_name_that_is_none() -> None:
    with pytest.raises(UsageError):
        operations.watch("../42")
