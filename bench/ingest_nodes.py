"""The nodes of `bench.ingest`: each sends what it has measured, in each form."""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from array import array
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2

from bench.measuring import HERE
from bench.simulated_nodes import node_names
from lattice.agent.linked_telemetry import LinkedTelemetry
from lattice.domain.latency import EDGES
from lattice.domain.metric import PREFIX, Labels, Provenance, labelled
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.nodejobs import JobIdentity
from lattice.features.link.node.dialler import Dialling
from lattice.features.telemetry.node.buffer import SampleRow
from lattice.features.telemetry.node.row_messages import OutgoingRows
from lattice.wire.remotewrite import HEADERS, WriteEncoder, as_snappy
from lattice.wire.v1 import telemetry_pb2 as pb
from lattice.wire.v1.telemetry_pb2_grpc import MetricIntakeStub
from tests.integration.link.site import NodeKey, Site

SERIES = 60
JOB_NODES = 8
_GPUS = 4
OWNER, PROJECT = "alice", "research"
_TENANT, _VCLUSTER = "physics", "batch"
_SOURCE = Provenance.HOST_LOCAL_PROBE
_OF_A_JOB = (
    "cpu_seconds_total",
    "cpu_cores",
    "memory_used_bytes",
    "memory_cache_bytes",
    "memory_limit_bytes",
    "memory_oom_kills_total",
    "processes",
    "threads",
    "io_read_bytes_total",
    "io_write_bytes_total",
)
_OF_A_NETWORK = ("tx_bytes", "rx_bytes", "packets", "errors")
_OF_A_GPU = (
    "gpu_utilization_percent",
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    "gpu_power_watts",
    "gpu_energy_joules_total",
    "gpu_temperature_celsius",
    "gpu_clock_sm_hertz",
)
_STORE_S = 30.0


def names(count: int) -> list[str]:
    """As a site with ten thousand has them."""
    return node_names(count, digits=5)


def job_of(place: int) -> int:
    """The job that runs on the node of this place."""
    return 1 + place // JOB_NODES


def catalogue(node: str) -> list[tuple[str, Labels]]:
    """The series of a node with four GPUs."""
    found: list[tuple[str, Labels]] = [(name, ()) for name in _OF_A_JOB]
    found += [(f"network_{name}_total", labelled(scope="node")) for name in _OF_A_NETWORK]
    for card in range(_GPUS):
        uuid = labelled(gpu_uuid=f"GPU-{node}-0000-0000-00000000000{card}")
        found += [(name, uuid) for name in _OF_A_GPU]
    found += [("io_latency_seconds_bucket", labelled(le=edge)) for edge in EDGES]
    found.append(("tcp_retransmits_total", labelled(scope="job")))
    found.append(("pressure_seconds_total", labelled(resource="memory", share="some")))
    assert len(found) == SERIES, len(found)
    return found


class SimulatedNode:
    """Sends what it has measured, in each form."""

    def __init__(self, site: Site, name: str, place: int, began: float, address: str) -> None:
        dialling = Dialling(NodeKey(site.authority, name, timedelta(hours=2)), site.clock)
        self.link = dialling.link_channel(address)
        self._job = job_of(place)
        self._began = began
        self._series = catalogue(name)
        self._stamps = {
            "alloc": str(self._job),
            "attempt": "1",
            "node": name,
            "project": PROJECT,
            "tenant": _TENANT,
            "user": OWNER,
            "vcluster": _VCLUSTER,
            "source": _SOURCE.value,
        }
        self._layout = tuple((metric, labels, _SOURCE) for metric, labels in self._series)
        self._identity = JobIdentity("", self._job, 0, began)
        self._dice = random.Random(place)
        self._last_ms = 0
        self.telemetry = LinkedTelemetry(lambda: self.link)

    def _moment(self) -> tuple[int, int, float]:
        """A time that was not sent yet, how much later it was read, and a value."""
        self._last_ms = max(self._last_ms + 1, round(time.time() * 1000) - 100)
        return self._last_ms, self._dice.randrange(3, 40), float(self._dice.randrange(100))

    def measured(self) -> OutgoingRows:
        """A row as the buffer gives it."""
        time_ms, late_ms, value = self._moment()
        row = SampleRow(
            self._identity,
            time_ms,
            self._layout,
            array("d", [value] * SERIES),
            array("H", [late_ms] * SERIES),
        )
        return OutgoingRows([row], lambda _: self._began)

    def points(self) -> list[SeriesPoints]:
        """The same, as the server would stamp it."""
        time_ms, late_ms, value = self._moment()
        at = (time_ms + late_ms) / 1000
        return [
            SeriesPoints(
                {"__name__": PREFIX + metric, **dict(labels), **self._stamps}, ((at, value),)
            )
            for metric, labels in self._series
        ]


class Crowd:
    """All the nodes, in one process."""

    def __init__(self, folder: Path, asked: argparse.Namespace) -> None:
        site = Site(folder)
        address = f"{HERE}:{asked.port}"
        self._nodes = [
            SimulatedNode(site, name, place, asked.began, address)
            for place, name in enumerate(names(asked.nodes))
        ]
        self._rate = asked.rate / SERIES
        self._write = f"{asked.store}/api/v1/write"
        self._encoder = WriteEncoder()
        self._http = httpx2.AsyncClient(
            timeout=_STORE_S,
            limits=httpx2.Limits(max_connections=64, max_keepalive_connections=64),
            trust_env=False,
        )

    async def rows(self, node: SimulatedNode) -> int:
        """By a server, as agents do; how many samples it took."""
        told = await node.telemetry.store(node.measured())
        assert not told.refused, told.reason
        return told.stored

    async def batches(self, node: SimulatedNode) -> int:
        """By a server, as agents of the release before do."""
        (batch,) = node.measured().batches()
        async with node.link.calls() as channel:
            stub: Any = MetricIntakeStub(channel)
            told: pb.StoredSamples = await stub.StoreSamples(batch, timeout=_STORE_S)
        assert not told.refused, told.reason
        return int(told.stored)

    async def straight(self, node: SimulatedNode) -> int:
        body = as_snappy(self._encoder.encode(node.points()))
        answer = await self._http.post(self._write, content=body, headers=HEADERS)
        assert answer.status_code < 300, answer.text
        return SERIES

    async def connect(self) -> None:
        """Every node once, few at a time: a handshake is no part of what is measured."""
        for begin in range(0, len(self._nodes), 20):
            await asyncio.gather(*(self.rows(each) for each in self._nodes[begin : begin + 20]))

    async def play(
        self, send: Callable[[SimulatedNode], Awaitable[int]], seconds: float
    ) -> dict[str, Any]:
        """At the rate that is wanted, one node after the other, until all is answered."""
        begun = time.perf_counter()
        late_ms: list[float] = []
        stored = 0

        async def one(node: SimulatedNode) -> None:
            nonlocal stored
            asked = time.perf_counter()
            taken = await send(node)
            stored += taken  # after the wait: others add to it meanwhile
            late_ms.append((time.perf_counter() - asked) * 1000)

        async with asyncio.TaskGroup() as group:
            for number in range(round(self._rate * seconds)):
                wait_s = begun + number / self._rate - time.perf_counter()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(one(self._nodes[number % len(self._nodes)]), name="send")
        return {
            "samples": stored,
            "took_s": time.perf_counter() - begun,
            "median_ms": statistics.median(late_ms),
            "p99_ms": statistics.quantiles(late_ms, n=100)[98],
        }
