"""The agent's telemetry put together: over the link, with the helper, and at the scrapers' door."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lattice.adapters.linux.nodejobs import NodeJobs, Roots
from lattice.agent.config import load_agent_config
from lattice.agent.telemetry import OutputSigns, TelemetryParts
from lattice.base.errors import ConfigurationError
from lattice.base.metrics_endpoint import MetricsEndpoint, local_metrics_address
from lattice.domain.alert import AlertRule
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Sample, labelled
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.stream import StreamKind
from lattice.features.link.node.servertime import ServerTime
from lattice.features.telemetry.convert.job_settings import settings_of
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.eventually import eventually_async
from tests.fakes.manual_clock import RECORDED, ManualClock
from tests.fakes.remote_write import read
from tests.fakes.web import Answer, web

NOW = RECORDED.timestamp()
LIFE = JobIdentity("b", 7, 1, NOW - 60)


def config(tmp_path: Path, text: str = "") -> Any:
    file = tmp_path / "agent.yaml"
    file.write_text(f"node_id: n1\nreplicas: [s1:50052]\nstate_dir: {tmp_path}\n{text}")
    return load_agent_config(file, {}, {})


@pytest.mark.spec("OPS-7")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("metrics: {listen: '0.0.0.0:9105'}", "metrics.listen"),
        ("metrics: {listen: 'n1.example.com:9105'}", "metrics.listen"),
        ("metrics: {listen: '10.0.0.1:9105'}", "metrics.listen"),
        ("metrics: {listen: '127.0.0.1'}", "metrics.listen"),
        ("metrics: {listen: '127.0.0.1:0'}", "metrics.listen"),
        ("metrics: {listen: ':9105'}", "metrics.listen"),
        ("metrics: {listen: 'relative.sock'}", "metrics.listen"),
        ("telemetry: {dcgm_url: 'http://elsewhere:9400'}", "telemetry.dcgm_url"),
        ("telemetry: {remote_write: 'vmagent:8429'}", "telemetry.remote_write"),
        ("telemetry: {remote_write: 'http://u:p@127.0.0.1/'}", "telemetry.remote_write"),
        ("telemetry: {buffer_mb: 0}", "telemetry.buffer_mb"),
        ("alerts: {gpu_memory_percent: 101}", "alerts.gpu_memory_percent"),
    ],
)
def test_an_agent_that_would_open_a_port_or_ask_the_network_does_not_start(
    text: str, key: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config(tmp_path, text)
    assert any(key in problem for problem in caught.value.problems)


@pytest.mark.spec("WATCH-2")
async def test_a_site_sets_from_where_on_it_is_told(tmp_path: Path) -> None:
    made = parts(tmp_path, "alerts: {gpu_memory_percent: 50}\n")
    try:
        card = labelled(gpu_uuid="g")
        readings = (
            Sample("gpu_memory_used_bytes", 60e9, NOW, labels=card),
            Sample("gpu_memory_total_bytes", 100e9, NOW, labels=card),
        )
        made.snapshots.measured(JobSnapshot(LIFE, NOW, 30.0, readings))
        life = made.snapshots.find(7, LIFE.started - 302)
        assert life is not None
        assert [(each.rule, each.bound) for each in life.judge.firing] == [
            (AlertRule.GPU_MEMORY, 50.0)
        ]
    finally:
        made.close()


def test_places_of_the_door() -> None:
    assert local_metrics_address("") is None
    for text in ("unix:/run/m.sock", "/run/m.sock"):
        place = local_metrics_address(text)
        assert place is not None
        assert place.path == Path("/run/m.sock")
    for text, host in (
        ("127.0.0.2:1", "127.0.0.2"),
        ("[::1]:1", "::1"),
        ("localhost:1", "127.0.0.1"),
    ):
        place = local_metrics_address(text)
        assert place is not None
        assert (place.host, place.port) == (host, 1)


async def asked(path: Path, question: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(question)
    try:
        answer = await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:
        answer = b""
    writer.close()
    with suppress(ConnectionResetError):
        await writer.wait_closed()
    return answer


@asynccontextmanager
async def door(path: Path) -> AsyncIterator[MetricsEndpoint]:
    place = local_metrics_address(f"unix:{path}")
    assert place is not None
    opened = MetricsEndpoint(place, lambda: "lattice_threads 3.0\n")
    running = asyncio.create_task(opened.run())
    await eventually_async(lambda: path.is_socket() and stat.S_IMODE(path.stat().st_mode) == 0o660)
    try:
        yield opened
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("TOP-2")
async def test_the_door_shows_one_page_and_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    async with door(path):
        answer = await asked(path, b"GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert body == b"lattice_threads 3.0\n"
        head_only = await asked(path, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert b"Content-Length: 20" in head_only
        assert head_only.endswith(b"\r\n\r\n")
        for question, status in (
            (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
            (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
            (b"GET /metrics\r\n\r\n", b"400"),
            (b"\x16\x03\x01\r\n\r\n", b"400"),
        ):
            assert (await asked(path, question)).split()[1] == status
        assert await asked(path, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 70_000) == b""
    assert not path.exists()


async def test_a_ninth_connection_replaces_the_oldest_of_its_account(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    async with door(path) as opened, asyncio.timeout(60):
        idle = [await asyncio.open_unix_connection(path) for _ in range(8)]
        await eventually_async(lambda: len(opened._answering) == 8)
        assert b"200 OK" in await asked(path, b"GET /metrics HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert await idle[0][0].read() == b""
        for _, writer in idle:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def test_a_socket_that_was_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    left = await asyncio.start_unix_server(lambda *_: None, path)
    left.close()
    await left.wait_closed()
    async with door(path):
        assert b"200 OK" in await asked(path, b"GET /metrics HTTP/1.1\r\n\r\n")


def parts(tmp_path: Path, text: str = "") -> TelemetryParts:
    clock = ManualClock()
    servers = ServerTime(clock, lambda: 302.0)
    nodes = NodeJobs(Roots(proc=tmp_path, cgroup=tmp_path), clock, notices=False)
    told = config(tmp_path, text)
    return TelemetryParts(told, nodes, lambda: None, clock, servers, tuple)


async def test_what_was_measured_is_on_the_page_with_the_agents_own_figures(tmp_path: Path) -> None:
    made = parts(tmp_path)
    try:
        assert set(made.serving) == {StreamKind.METRICS}
        made.snapshots.measured(
            JobSnapshot(LIFE, NOW - 302, 30.0, (Sample("threads", 3.0, NOW - 302),))
        )
        made.buffer.lost_total = 5
        page = made.metrics_page()
        assert 'lattice_threads{alloc="7",node="n1",source="host_local_probe"} 3.0' in page
        made._scraped = lambda _: ()
        assert "lattice_threads" not in made.metrics_page()
        assert 'lattice_agent_samples_lost_total{node="n1"} 5.0' in page
        assert "lattice_agent_cpu_seconds_total" in page
        names = {each.name for each in made.loops()}
        assert {"telemetry", "telemetry sending over servers", "telemetry told"} <= names
        assert "telemetry sending straight" not in names
    finally:
        made.close()


@pytest.mark.spec("TOP-2")
async def test_a_node_that_is_told_whose_its_jobs_are_writes_by_itself(tmp_path: Path) -> None:
    with web({"/api/v1/write": Answer(status=204)}) as store:
        made = parts(tmp_path, f"telemetry: {{remote_write: '{store.url}'}}\n")
        whose: dict[str, Any] = {"alloc": "7", "attempt": 2, "user": "alice", "tenant": "physics"}
        began = LIFE.started - 302
        stamps = [pb.JobStamps(job_id=7, started=began, **whose)]
        made.job_settings.stamps.note(
            settings_of(pb.JobsTold(stamping=True, stamps=stamps, as_of=NOW))
        )
        over, straight = made.sendings
        for each in (over, straight):
            each._sleep = _no_time
        samples = (Sample("threads", 3.0, NOW - 302),)
        made.buffer.add(JobSnapshot(LIFE, NOW - 302, 30.0, samples))
        running = [asyncio.create_task(each.run()) for each in made.sendings]
        try:
            await eventually_async(lambda: straight.stored_total)
            assert 'lattice_agent_samples_stored_total{node="n1"} 1.0' in made.metrics_page()
            assert over.stored_total == 0
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            made.close()
    ((labels, points),) = read(store.requests[0].body)
    assert dict(labels) == {
        "__name__": "lattice_threads",
        "alloc": "7",
        "attempt": "2",
        "node": "n1",
        "source": "host_local_probe",
        "tenant": "physics",
        "user": "alice",
    }
    assert points == [(round((NOW - 302) * 1000), 3.0)]


async def _no_time(_: float) -> None:
    await asyncio.sleep(0)


async def test_a_node_can_be_left_unmeasured(tmp_path: Path) -> None:
    made = parts(tmp_path, "telemetry: {enabled: false}\n")
    try:
        assert made.serving == {}
        assert not [each.name for each in made.loops() if each.name.startswith("telemetry")]
    finally:
        made.close()


async def test_a_job_wrote_when_more_of_its_output_was_read() -> None:
    clock, tail = ManualClock(), SimpleNamespace(offset=100)
    capture = SimpleNamespace(streams=(SimpleNamespace(tail=tail),))
    followed: list[Any] = [SimpleNamespace(identity=LIFE, capture=capture)]
    signs = OutputSigns(lambda: followed, lambda: clock.now().timestamp())
    assert signs(LIFE) is None, "when it wrote what was there before is not known"
    clock.advance(30)
    assert signs(LIFE) is None
    tail.offset = 150
    clock.advance(30)
    assert signs(LIFE) == NOW + 60
    clock.advance(30)
    assert signs(LIFE) == NOW + 60
    followed.clear()
    assert signs(LIFE) == NOW + 60
