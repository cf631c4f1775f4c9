"""What `top`, `report`, `compare` and `diag` give does not depend on how samples travelled.

The same samples reach two stores through the intake: as batches of the release before, and as rows
on a stream. Every answer is compared whole, as JSON and as the command prints it.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lattice.access.actor import Actor
from lattice.base.clock import SystemClock
from lattice.base.command import Command
from lattice.base.fast_start import argv
from lattice.base.operation import AnyBinding, Operation
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Sample, labelled
from lattice.domain.metricstore import MetricStore
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.compare import wiring as compare
from lattice.features.compare.command import COMPARE
from lattice.features.compare.operations import COMPARE_METRICS, CompareRequest
from lattice.features.diag import wiring as diag
from lattice.features.diag.command import DIAG
from lattice.features.diag.operations import GET_DIAGNOSTICS, DiagRequest
from lattice.features.diag.section import DiagSection
from lattice.features.report import wiring as report
from lattice.features.report.command import REPORT
from lattice.features.report.operations import GET_REPORT, ReportRequest
from lattice.features.telemetry.node.buffer import Layouts
from lattice.features.telemetry.node.row_messages import OutgoingRows
from lattice.features.telemetry.service.intake import SampleIntake
from lattice.features.telemetry.service.sample_guard import SampleGuard
from lattice.features.telemetry.service.sample_writer import SampleWriting
from lattice.features.top import wiring as top
from lattice.features.top.command.top import TOP
from lattice.features.top.model import TopMode
from lattice.features.top.operations import QUERY_METRICS, TopRequest
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.foundation.foundation import LoggedJournal, NodeAccess
from lattice.foundation.own_metrics import OwnMetrics
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.contract.metric_stores import KINDS, place_of
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.foundation import SILENT_LOG, in_memory_foundation
from tests.fakes.in_memory_facts import InMemoryFacts, InMemoryStacks
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock
from tests.fakes.node_looks import InMemoryNodeLooks
from tests.fakes.shell import COMMON_OPTIONS, FakeShell
from tests.fakes.supervised import SupervisedLoops
from tests.recorded_samples import TAPES, AsBatches, AsRows, Form, recorded

ALICE = Actor(sub="sub-alice", user="alice")
STEP_S, SAMPLES = 30.0, 24
RECORDED_STEP_S = 1.0


@dataclass(frozen=True)
class Run:
    """A job that runs, and the batches of its nodes."""

    job_id: int
    began: float
    step_s: float
    batches: Mapping[str, Sequence[pb.SampleBatch]]
    gpus: int = 0


def recorded_run(file: Path, job_id: int, now: float) -> Run:
    """As it was recorded, but under another number, on another node, and until now."""
    _, batches = recorded(file)
    jobs = [job for batch in batches for job in batch.jobs]
    newest_ms = max(time_ms for job in jobs for time_ms in job.times_ms)
    began = now - newest_ms / 1000 + jobs[0].started
    for job in jobs:
        later_ms = round(now * 1000) - newest_ms
        job.times_ms[:] = [each + later_ms for each in job.times_ms]
        job.job_id, job.started = job_id, began
    return Run(job_id, began, RECORDED_STEP_S, {f"n{job_id}": batches})


@dataclass
class MadeNode:
    """Two cards; not everything is measured always, or in time."""

    name: str
    pace: float
    draw: random.Random
    counted: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def measured(self, at: float) -> Iterator[Sample]:
        uniform = self.draw.uniform
        for name, a_second in {"cpu": 2.0, "network": 3e6, "few": 40.0, "many": 60.0}.items():
            self.counted[name] += STEP_S * a_second * self.pace * uniform(0.9, 1.1)
        few, all_of_them = self.counted["few"], self.counted["few"] + self.counted["many"]
        yield Sample("cpu_seconds_total", self.counted["cpu"], at)
        yield Sample("memory_used_bytes", uniform(1e9, 4e9), at + uniform(0, 0.2))
        yield Sample("memory_limit_bytes", 8e9, at)
        scope = labelled(scope="node")
        yield Sample("network_tx_bytes_total", self.counted["network"], at, labels=scope)
        for edge, count in {"0.001": few, "0.01": all_of_them, "+Inf": all_of_them}.items():
            yield Sample("io_latency_seconds_bucket", count, at, labels=labelled(le=edge))
        for number in range(2):
            card = labelled(gpu_uuid=f"GPU-{self.name}-{number}")
            if self.draw.random() < 0.9:
                used = 90 * self.pace + uniform(-2, 2)
                yield Sample("gpu_utilization_percent", used, at, labels=card)
            # A vendor's tool returns some values from its cache.
            read_at = at + self.draw.choice([0.0, 0.4, -2.0])
            yield Sample("gpu_power_watts", 600 * self.pace + uniform(-9, 9), read_at, labels=card)
            yield Sample("gpu_memory_used_bytes", uniform(4e10, 5e10), at, labels=card)
            yield Sample("gpu_memory_total_bytes", 8e10, at, labels=card)


def made_run(job_id: int, now: float, *, pace: float) -> Run:
    """Four nodes, the last of which is a straggler."""
    draw = random.Random(job_id)
    began = now - STEP_S * SAMPLES - 7.25
    identity = JobIdentity("", job_id, 1, began)
    nodes = [
        MadeNode(f"n{job_id}{number}", 0.3 if number == 4 else pace, draw) for number in range(1, 5)
    ]
    sent: dict[str, list[pb.SampleBatch]] = {each.name: [] for each in nodes}
    for node in nodes:
        layouts = Layouts()
        for number in range(1, SAMPLES + 1):
            at = began + STEP_S * number
            snapshot = JobSnapshot(identity, at, STEP_S, tuple(node.measured(at)))
            rows = layouts.rows_of(snapshot, snapshot.samples)
            sent[node.name] += OutgoingRows(rows, lambda _: began).batches()
    return Run(job_id, began, STEP_S, sent, gpus=8)


class Site:
    """The features on a store, of a cluster on which Alice's jobs run."""

    def __init__(self, store: MetricStore, runs: Sequence[Run], now: datetime) -> None:
        self.clock = clock = ManualClock(now)
        scheduler = InMemoryScheduler(clock)
        scheduler.accounts = ACCOUNTS
        scheduler.allocations = [
            allocation(
                each.job_id,
                "alice",
                "research",
                submitted=datetime.fromtimestamp(each.began, UTC),
                nodes=",".join(each.batches),
                node_count=len(each.batches),
                gpus=each.gpus,
            )
            for each in runs
        ]
        steps = {job.ref: run.step_s for job, run in zip(scheduler.allocations, runs, strict=True)}
        attempts, nothing = AttemptFinder(scheduler, clock), _nothing()
        nodes = NodeAccess(
            streams=nothing,
            signer=nothing,
            looks=InMemoryNodeLooks(),
            modes=lambda ref: ModeInForce(allocation=ref, mode=Mode.PROD, interval_s=steps[ref]),
            attempts=attempts,
        )
        base = in_memory_foundation(clock, scheduler=scheduler, metrics=store, nodes=nodes)
        wirings = (
            top.wire(base, nodes),
            report.wire(base),
            compare.wire(base),
            diag.wire(base, nodes, DiagSection(), InMemoryFacts(), InMemoryStacks()),
        )
        self._bindings: dict[str, AnyBinding] = {
            each.operation.rpc: each for wiring in wirings for each in reversed(wiring.bindings)
        }
        self.writing = SampleWriting(store, clock, linger_s=0.0)
        guard = SampleGuard(attempts.of, clock, lambda _: False)
        journal = LoggedJournal(SILENT_LOG, OwnMetrics())
        self.intake = SampleIntake(guard, self.writing, journal)

    async def take(self, form: Form, runs: Sequence[Run]) -> None:
        """Store all samples of the runs, in this form."""
        async with self.writing.running(SupervisedLoops()):
            for run in runs:
                for node, batches in run.batches.items():
                    sender = form(self.intake, node)
                    for batch in batches:
                        stored = await sender.send(batch)
                        assert stored.stored > 0
                        assert stored.refused == 0

    async def json(self, operation: Operation[Any, Any], request: Any) -> Any:
        """The answer as REST gives it."""
        answer = await self._bindings[operation.rpc].handler(ALICE, request)
        return json.loads(msgspec.json.encode(answer))


def _nothing() -> Any:
    return None


def printed(command: Command, answer: Any, path: str, *words: str) -> str:
    """What the command makes of an answer in a pipe, 120 columns wide."""
    values = argv.read(command, words)
    assert values is not None
    shell = FakeShell({path: answer}, width=120)
    command.run(
        shell, **{name: each for name, each in values.items() if name not in COMMON_OPTIONS}
    )
    return shell.out + shell.paged


async def outputs(site: Site) -> dict[str, Any]:
    """Every answer, and what people see of it. Jobs 2 and 4 are there to compare with."""
    found: dict[str, Any] = {}
    for job_id in ("1", "3"):
        path = f"/v1/allocations/{job_id}"
        for mode in TopMode:
            asked = TopRequest(id=job_id, mode=mode, history=True)
            found[f"top {job_id} {mode}"] = await site.json(QUERY_METRICS, asked)
        asked = TopRequest(id=job_id, mode=TopMode.PER_NODE, duration_s=300)
        answer = found[f"top {job_id} over time"] = await site.json(QUERY_METRICS, asked)
        words = job_id, "--per-node", "--duration", "5m"
        found[f"top {job_id}, printed"] = printed(TOP, answer, path + "/metrics", *words)
        answer = found[f"report {job_id}"] = await site.json(GET_REPORT, ReportRequest(id=job_id))
        found[f"report {job_id}, printed"] = printed(REPORT, answer, path + "/report", job_id)
        answer = found[f"diag {job_id}"] = await site.json(GET_DIAGNOSTICS, DiagRequest(id=job_id))
        found[f"diag {job_id}, printed"] = printed(DIAG, answer, path + "/diagnostics", job_id)
    for pair in (("1", "2"), ("3", "4")):
        answer = await site.json(COMPARE_METRICS, CompareRequest(ids=pair))
        name = " ".join(("compare", *pair))
        found[name] = answer
        found[f"{name}, printed"] = printed(COMPARE, answer, "/v1/compare", *pair)
    return found


def differences(before: Any, after: Any, within: float, path: str = "") -> Iterator[str]:
    """Each value that is not the same; numbers may differ by a share of `within`."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for name in before:
            yield from differences(before[name], after[name], within, f"{path}/{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, within, f"{path}/{place}")
    elif isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=within, abs_tol=within):
            yield f"{path}: {before} and {after}"
    elif before != after:
        yield f"{path}: {before!r} and {after!r}"


@asynccontextmanager
async def filled(
    kind: str, folder: Path, form: Form, runs: Sequence[Run], now: datetime
) -> AsyncIterator[Site]:
    folder.mkdir()
    async with place_of(kind, folder) as place:
        site = Site(place.store, runs, now)
        await site.take(form, runs)
        await place.settle()
        yield site


@pytest.mark.spec("TOP-1", "TOP-2", "TOP-5", "COMPARE-1", "DIAG-1")
@pytest.mark.parametrize("kind", KINDS)
async def test_every_output_is_the_same_in_both_forms(kind: str, tmp_path: Path) -> None:
    now = SystemClock().now()
    at = now.timestamp()
    runs = [recorded_run(file, number, at) for number, file in enumerate(TAPES, 1)]
    runs += [made_run(3, at, pace=1.0), made_run(4, at, pace=0.8)]
    async with (
        filled(kind, tmp_path / "batches", AsBatches, runs, now) as older,
        filled(kind, tmp_path / "rows", AsRows, runs, now) as newer,
    ):
        before, after = await outputs(older), await outputs(newer)
    # Engines add series in any order: asked twice, they differ in the last digits of a sum.
    within = 0.0 if kind == "memory" else 1e-9
    assert list(differences(before, after, within)) == []
    assert_of_the_samples(before)


def assert_of_the_samples(found: Mapping[str, Any]) -> None:
    """Everything that is compared comes from samples, so a lost one would change it."""
    assert "0 s · every 1 s · 1/1 nodes" in found["top 1, printed"]
    assert "4/4 nodes" in found["top 3, printed"]
    for name in ("top 3 per_gpu", "top 3 wide"):
        cells = [cell for row in found[name]["rows"] for cell in row["cells"]]
        assert sum(len(cell["history"]) for cell in cells) > 8 * SAMPLES, name
    assert "GPU utilization" in found["report 3, printed"]
    (straggler,) = (each for each in found["diag 3"]["findings"] if each["verdict"] == "attention")
    assert straggler["rule"] == "straggler"
    assert "n34" in found["diag 3, printed"]
    means = [level["mean"] for row in found["compare 3 4"]["metrics"] for level in row["levels"]]
    assert len(means) == 14
    assert None not in means
    assert "B uses 7.1 % more memory" in found["compare 1 2, printed"]
