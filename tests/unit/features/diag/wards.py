"""Jobs to be judged: a healthy one of any load by a seed, and ways to make it sick.

A ward is what a case is made of, in a form that is easily changed: of each node what it measured at
two looks, its facts at two looks, its signs of progress, and the traces of its metrics.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from lattice.domain.alert import Alert, Progress
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.jobfacts import (
    GpuFact,
    LinkCounts,
    LinkFact,
    LinkKind,
    MountFact,
    NodeFacts,
    TaskFact,
    TransportFact,
)
from lattice.domain.measured import JobSnapshot, Shown
from lattice.domain.metric import Absence, MetricReading, Sample, labelled
from lattice.domain.metricstore import Point
from lattice.domain.node_snapshot import NodeSnapshot, NodeUnreachable
from lattice.domain.nodejobs import JobIdentity
from lattice.features.diag.model import Case, Finding, Targets, TraceKey, Verdict
from lattice.features.diag.rules.engine import known_rules, run_rules
from tests.fakes.cluster import allocation

NOW = 1_794_700_000.0
BEGUN = NOW - 3600.0
STEP_S = 30.0
GIB = 1024.0**3


@dataclass
class WardNode:
    """One node of the job. Gauges and rates are what it measures; the rest is counted from them."""

    name: str
    cores: float = 16.0
    cpu_percent: float = 800.0
    memory: float = 20 * GIB
    limit: float = 64 * GIB
    oom_kills: float = 0.0
    io_pressure: float = 2.0
    memory_pressure: float = 0.0
    packets_s: float = 20_000.0
    errors_s: float = 0.0
    again_s: float = 1.0
    cards: dict[str, dict[str, float]] = field(default_factory=dict)
    throttled: dict[str, tuple[str, ...]] = field(default_factory=dict)
    nvlink_bytes_s: float | None = None
    """What each card moves over it; None: the cards do not tell."""
    links: str = "nvlink"
    new_ecc: float = 0.0
    new_xids: dict[str, float] = field(default_factory=dict)
    progress: Progress | None = None
    firing: tuple[Alert, ...] = ()
    absences: dict[str, Absence] = field(default_factory=dict)
    facts: NodeFacts | None = None
    earlier: NodeFacts | None = None
    silence: NodeUnreachable | None = None
    noise: random.Random = field(default_factory=lambda: random.Random(7))
    latency: dict[str, float] = field(
        default_factory=lambda: {"0.0001": 0.6, "0.001": 0.96, "0.01": 0.995, "+Inf": 1.0}
    )
    """Which share of reads and writes took at most so long."""
    trace_of: dict[Shown, float] = field(default_factory=dict)
    """Where the past is another than now."""

    def snapshot(self, at: float) -> JobSnapshot:
        since = at - BEGUN
        late = at >= NOW - 1

        def one(metric: str, value: float, **labels: str) -> Sample:
            return Sample(metric, value, at, labels=labelled(**labels))

        told: list[MetricReading] = [
            one("cpu_seconds_total", self.cpu_percent / 100 * since),
            one("cpu_cores", self.cores),
            one("memory_used_bytes", self.memory),
            one("memory_limit_bytes", self.limit),
            one("memory_oom_kills_total", self.oom_kills),
            one("network_tx_bytes_total", 5e8 * since, scope="job"),
            one("network_rx_bytes_total", 5e8 * since, scope="job"),
            one("network_packets_total", self.packets_s * since, scope="job"),
            one("network_errors_total", self.errors_s * since, scope="job"),
            one("tcp_retransmits_total", self.again_s * since, scope="job"),
            one(
                "pressure_seconds_total",
                self.io_pressure / 100 * since,
                resource="io",
                share="some",
            ),
            one(
                "pressure_seconds_total",
                self.memory_pressure / 100 * since,
                resource="memory",
                share="full",
            ),
        ]
        told += [
            one("io_latency_seconds_bucket", share * 50 * since, le=edge)
            for edge, share in self.latency.items()
        ]
        for uuid, values in self.cards.items():
            told += [
                one("gpu_utilization_percent", values["used"], gpu_uuid=uuid),
                one("gpu_power_watts", values["watts"], gpu_uuid=uuid),
                one("gpu_power_limit_watts", 700.0, gpu_uuid=uuid),
                one("gpu_temperature_celsius", values.get("heat", 62.0), gpu_uuid=uuid),
                one(
                    "gpu_ecc_uncorrected_total",
                    3.0 + (self.new_ecc if late else 0.0),
                    gpu_uuid=uuid,
                ),
                *(
                    one(f"gpu_{self.links}_bytes_total", rate * since, gpu_uuid=uuid)
                    for rate in [self.nvlink_bytes_s]
                    if rate is not None
                ),
                *(
                    one(
                        "gpu_throttled",
                        float(reason in self.throttled.get(uuid, ())),
                        gpu_uuid=uuid,
                        reason=reason,
                    )
                    for reason in ("hw_thermal", "sw_thermal", "sw_power_cap", "power_brake")
                ),
                *(
                    one("gpu_xid_total", count if late else 0.0, gpu_uuid=uuid, xid=xid)
                    for xid, count in self.new_xids.items()
                ),
            ]
        kept = [
            each for each in told if isinstance(each, Sample) and each.metric not in self.absences
        ]
        identity = JobIdentity("boot", 1, 7, BEGUN)
        return JobSnapshot(identity, at, STEP_S, (*kept, *self.absences.values()))

    def sight(self) -> NodeSnapshot:
        return NodeSnapshot(
            node=self.name,
            before=self.snapshot(NOW - STEP_S),
            now=self.snapshot(NOW),
            firing=self.firing,
            progress=self.progress,
        )

    def traces(self) -> dict[TraceKey, tuple[Point, ...]]:
        found: dict[TraceKey, tuple[Point, ...]] = {}
        found[Shown.CPU_UTILIZATION, self.name, ""] = self._points(
            self.trace_of.get(Shown.CPU_UTILIZATION, self.cpu_percent), 1e9
        )
        for uuid, values in self.cards.items():
            used = self.trace_of.get(Shown.GPU_UTILIZATION, values["used"])
            found[Shown.GPU_UTILIZATION, self.name, uuid] = self._points(used, 100.0)
            found[Shown.GPU_POWER_DRAW, self.name, uuid] = self._points(values["watts"], 700.0)
        return found

    def _points(self, level: float, most: float) -> tuple[Point, ...]:
        return tuple(
            (NOW - STEP_S * ago, min(most, max(0.0, level * self.noise.gauss(1.0, 0.03))))
            for ago in range(19, -1, -1)
        )


@dataclass
class Ward:
    nodes: list[WardNode]
    gpus: bool = True
    tasks: int = 4
    targets: Targets = field(default_factory=Targets)
    no_traces: str = ""
    groups: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, place: int) -> WardNode:
        return self.nodes[place]

    @property
    def case(self) -> Case:
        names = tuple(each.name for each in self.nodes)
        began = datetime.fromtimestamp(BEGUN, UTC)
        told = allocation(
            1,
            "alice",
            "research",
            submitted=began,
            started=began,
            nodes=",".join(names),
            node_count=len(names),
            gpus=4 * len(names) if self.gpus else 0,
            tasks=self.tasks,
        )
        heard = [each for each in self.nodes if each.silence is None]
        traces: dict[TraceKey, tuple[Point, ...]] = {}
        for each in [] if self.no_traces else heard:
            traces |= each.traces()
        return Case(
            job=JobAttempt(told, attempts_of(told)[0]),
            now=NOW,
            interval_s=STEP_S,
            nodes=names,
            groups=self.groups,
            sights={each.name: each.sight() for each in heard},
            facts={each.name: each.facts for each in heard if each.facts is not None},
            earlier={each.name: each.earlier for each in heard if each.earlier is not None},
            silences={each.name: each.silence for each in self.nodes if each.silence is not None},
            traces=traces,
            no_traces=self.no_traces,
            targets=self.targets,
        )

    def judged(self) -> tuple[Finding, ...]:
        return run_rules(known_rules(), self.case)

    def sick(self) -> dict[str, Finding]:
        return {each.rule: each for each in self.judged() if each.verdict.is_sick}

    def verdict(self, rule: str) -> set[Verdict]:
        return {each.verdict for each in self.judged() if each.rule == rule}


def healthy(seed: int = 1, *, nodes: int = 4, gpus: bool = True, ranks: int = 4) -> Ward:
    """A job of varied load that is well: how much it uses, and how evenly, is up to the seed."""
    chance = random.Random(seed)
    load = chance.uniform(0.3, 1.0)
    evenness = chance.uniform(0.0, 0.08)
    made = []
    for number in range(nodes):
        node = WardNode(f"n{number + 1}", noise=random.Random(seed * 1000 + number))
        uneven = 1 + chance.uniform(-evenness, evenness)
        # The first rank writes logs and checkpoints: it does a little more.
        node.cpu_percent = node.cores * 60 * load * uneven * (1.15 if number == 0 else 1.0)
        node.memory = node.limit * chance.uniform(0.1, 0.85)
        node.io_pressure = chance.uniform(0.0, 12.0)
        node.packets_s = chance.uniform(1000.0, 1e6)
        node.again_s = node.packets_s * chance.uniform(0.0, 0.002)
        if gpus:
            for card in range(4):
                used = min(100.0, 100 * (0.55 + 0.45 * load) * uneven)
                watts = 200 + 480 * load * uneven
                node.cards[f"GPU-{number + 1}{card}0000"] = {"used": used, "watts": min(watts, 700)}
                if watts > 650:
                    node.throttled[f"GPU-{number + 1}{card}0000"] = ("sw_power_cap",)
        node.progress = Progress(
            output=NOW - chance.uniform(1, 250),
            processor=NOW,
            storage=NOW - chance.uniform(0, 1000),
            network=NOW - chance.uniform(0, 60),
        )
        _facts(node, number, nodes, ranks, chance, uneven * load)
        made.append(node)
    groups = {each.name: f"g{place % 2}" for place, each in enumerate(made)}
    return Ward(made, gpus=gpus, tasks=ranks, groups=groups)


def link(name: str = "hsn0", **changes: Any) -> LinkFact:
    facts: dict[str, Any] = {
        "kind": LinkKind.INFINIBAND,
        "up": True,
        "speed_bits": 2e11,
        "best_speed_bits": 2e11,
        "rx_bytes": 1e12,
        "tx_bytes": 1e12,
        "packets": 1e9,
        "errors": 0.0,
        "waits": 0.0,
        "waits_unit": "ticks",
        "downs": 1.0,
        "changed": BEGUN - 86400,
        "of_job": LinkCounts(
            seconds=3600, rx_bytes=1e11, tx_bytes=1e11, packets=1e8, errors=0, waits=0, downs=0
        ),
    }
    return LinkFact(name=name, **facts | changes)


def task(rank: int, **changes: Any) -> TaskFact:
    facts: dict[str, Any] = {
        "pid": 4000 + rank,
        "state": "S",
        "waits_in": "ep_poll",
        "cpu_seconds": 1000.0,
        "command": "python train.py",
        "started": BEGUN,
        "python_unbuffered": True,
        "output_piped": True,
    }
    return TaskFact(rank=rank, **facts | changes)


def mount(path: str = "/scratch", **changes: Any) -> MountFact:
    facts: dict[str, Any] = {
        "kind": "nfs4",
        "source": "store:/scratch",
        "answered_s": 0.003,
        "read_bytes": 1e12,
        "write_bytes": 1e11,
        "operations": 1e7,
        "latency_s": 0.0008,
    }
    return MountFact(path=path, **facts | changes)


def _facts(
    node: WardNode, number: int, nodes: int, ranks: int, chance: random.Random, load: float
) -> None:
    mine = [rank for rank in range(ranks) if rank * nodes // ranks == number]
    busy = {rank: 60 * load * chance.uniform(0.95, 1.05) for rank in mine}
    node.facts = NodeFacts(
        node=node.name,
        time=NOW,
        links=(link(), link("eno1", speed_bits=1e9, best_speed_bits=1e9), _spare()),
        transport=TransportFact(
            seconds=3600, sent_segments=1e7, retransmits=chance.uniform(0, 5e3), ecn_marks=10.0
        ),
        mounts=(mount(), mount("/home", answered_s=chance.uniform(1e-4, 0.2))),
        tasks=tuple(task(rank, cpu_seconds=1000 + busy[rank]) for rank in mine),
        gpus=tuple(
            GpuFact(uuid=uuid, health="ok", pcie_width=16, pcie_best_width=16)
            for uuid in node.cards
        ),
        clock_ahead_s=chance.uniform(-0.2, 0.2),
        last_output=NOW - chance.uniform(1, 250),
    )
    node.earlier = replace(
        node.facts,
        time=NOW - 100,
        links=tuple(
            replace(each, rx_bytes=9e11, tx_bytes=9e11, packets=9e8) if each.up else each
            for each in node.facts.links
        ),
        transport=TransportFact(seconds=3500, sent_segments=9e6, retransmits=0.0, ecn_marks=10.0),
        mounts=tuple(
            replace(each, read_bytes=9.9e11, write_bytes=9e10, operations=9.9e6)
            for each in node.facts.mounts
        ),
        tasks=tuple(replace(each, cpu_seconds=1000.0) for each in node.facts.tasks),
    )


def _spare() -> LinkFact:
    """A socket without a cable, as most boards have."""
    return LinkFact(name="eno2", kind=LinkKind.ETHERNET, up=False, rx_bytes=0.0, downs=0.0)


def still(ward: Ward, for_s: float = 600.0) -> None:
    """Nothing moves any more."""
    for each in ward.nodes:
        ago = NOW - for_s
        each.progress = Progress(output=ago, processor=ago, storage=ago, network=ago)
        each.cpu_percent = 0.0
        assert each.facts is not None
        each.facts = replace(each.facts, last_output=ago)
        each.cards = {uuid: {"used": 0.0, "watts": 90.0} for uuid in each.cards}
        each.throttled = {}


def refact(node: WardNode, **changes: Any) -> None:
    assert node.facts is not None
    node.facts = replace(node.facts, **changes)
