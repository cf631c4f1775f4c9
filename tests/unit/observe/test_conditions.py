"""An alert and a diagnosis agree: both rules judge the same samples of one job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from lattice.agent.sections import AlertsSection
from lattice.domain.alert import AlertRule, Severity
from lattice.domain.measured import JobSnapshot, Shown
from lattice.domain.metric import MetricReading
from lattice.domain.metricstore import Point
from lattice.features.diag.model import DiagRule, Targets, TraceKey, Verdict, worst
from lattice.features.diag.rules.gpu_errors import GpuErrors
from lattice.features.diag.rules.gpu_hang import GpuHang
from lattice.features.diag.rules.gpu_idle import GpuIdle
from lattice.features.diag.rules.io_latency import IoLatency
from lattice.features.diag.rules.link_errors import LinkErrors
from lattice.features.diag.rules.oom_kill import OomKill
from lattice.features.diag.rules.throttle import Throttle
from lattice.features.diag.section import DiagSection
from lattice.features.diag.wiring import targets_of
from lattice.features.watch.node.judge import AlertJudge
from lattice.observe.thresholds import Thresholds
from lattice.probes.amd_table import HEAT
from tests.fakes.node_looks import BEGUN, CARD, card, sample, sight, snapshot
from tests.unit.features.diag.wards import healthy

STEP_S = 30.0
TRACE_S = 600.0
TRACED = {
    "gpu_utilization_percent": Shown.GPU_UTILIZATION,
    "gpu_power_watts": Shown.GPU_POWER_DRAW,
}
RULES: dict[AlertRule, DiagRule] = {
    AlertRule.GPU_IDLE: GpuIdle(),
    AlertRule.GPU_HANG: GpuHang(),
    AlertRule.NETWORK_ERRORS: LinkErrors(),
    AlertRule.IO_LATENCY: IoLatency(),
    AlertRule.OOM_KILL: OomKill(),
    AlertRule.THROTTLE: Throttle(),
    AlertRule.XID: GpuErrors(),
    AlertRule.ECC: GpuErrors(),
}
"""The rule of the diagnosis for each rule of the alerts."""


def traces(snapshots: Iterable[JobSnapshot]) -> dict[TraceKey, tuple[Point, ...]]:
    """What the metric store has of these snapshots."""
    found: dict[TraceKey, list[Point]] = {}
    for each in snapshots:
        for metric, shown in TRACED.items():
            for value in each.of(metric):
                key = (shown, "n1", value.label("gpu_uuid"))
                found.setdefault(key, []).append((each.time, value.value))
    return {key: tuple(points) for key, points in found.items()}


def judged(
    rule: AlertRule,
    readings: Callable[[int], Iterable[MetricReading]],
    samples: int,
    **changes: float,
) -> tuple[Severity | None, Verdict]:
    """The severity of the alert and the verdict of the diagnosis, after so many samples.

    `readings` gives those of each sample by its number. The diagnosis does not see the alert.
    """
    snapshots = [snapshot(STEP_S * number, *readings(number)) for number in range(samples)]
    judge = AlertJudge(Thresholds(**changes))  # type: ignore[arg-type]
    for each in snapshots:
        judge.see(each, BEGUN - 5.0)
    now = snapshots[-1]
    case = replace(
        healthy(nodes=1).case,
        now=now.time,
        interval_s=STEP_S,
        sights={"n1": sight("n1", now, snapshots[-2], progress=judge.progress)},
        facts={},
        earlier={},
        traces=traces(each for each in snapshots if each.time >= now.time - TRACE_S),
        targets=Targets(**changes),  # type: ignore[arg-type]
    )
    severity = next((each.severity for each in judge.firing if each.rule is rule), None)
    return severity, worst(each.verdict for each in RULES[rule].judge(case))


def agree(found: tuple[Severity | None, Verdict], *, sick: bool) -> None:
    severity, verdict = found
    assert (severity is not None, verdict.is_sick) == (sick, sick), found


@pytest.mark.spec("WATCH-2", "DIAG-4")
@pytest.mark.parametrize("samples", [2, 3, 4, 12])
@pytest.mark.parametrize("bound", [10.0, 37.5])
@pytest.mark.parametrize("factor", [0.0, 0.5, 0.99, 0.9999, 1.0, 1.0001, 1.2, 2.0])
def test_an_idle_gpu(factor: float, bound: float, samples: int) -> None:
    found = judged(
        AlertRule.GPU_IDLE,
        lambda number: card(STEP_S * number, used=factor * bound),
        samples,
        gpu_idle_percent=bound,
    )
    agree(found, sick=factor < 1.0 and samples > 3)


@pytest.mark.spec("WATCH-2", "DIAG-4")
@pytest.mark.parametrize("percent", [50.0, 94.9, 95.0, 100.0])
@pytest.mark.parametrize(
    ("most", "watts", "samples", "sick"),
    [
        (380.0, 90.0, 2, False),
        (380.0, 90.0, 6, True),
        (380.0, 159.9, 6, True),
        (380.0, 160.0, 6, False),
        (380.0, 300.0, 30, False),
        # It drew a little more: it has to fall below 120 W, or to last for ten minutes.
        (200.0, 119.9, 6, True),
        (200.0, 120.0, 6, False),
        (200.0, 159.9, 19, False),
        (200.0, 159.9, 22, True),
        (200.0, 160.0, 22, False),
        # It never drew more: only time separates a hang from light work.
        (90.0, 90.0, 18, False),
        (90.0, 90.0, 22, True),
    ],
)
def test_a_hung_gpu(most: float, watts: float, samples: int, sick: bool, percent: float) -> None:
    """Two samples at work, then so many that spin."""

    def readings(number: int) -> Iterable[MetricReading]:
        drawn = most if number < 2 else watts
        return card(STEP_S * number, used=percent, watts=drawn, limit_watts=400.0)

    agree(judged(AlertRule.GPU_HANG, readings, samples + 2), sick=sick and percent >= 95.0)


@pytest.mark.spec("WATCH-2", "DIAG-1")
@pytest.mark.parametrize("kills", [0.0, 1.0, 2.0, 7.0])
def test_an_oom_kill(kills: float) -> None:
    found = judged(
        AlertRule.OOM_KILL,
        lambda number: [sample("memory_oom_kills_total", number and kills, STEP_S * number)],
        2,
    )
    agree(found, sick=kills > 0)


@pytest.mark.spec("WATCH-2", "DIAG-2")
@pytest.mark.parametrize("bound", [0.1, 2.0])
@pytest.mark.parametrize("packets", [0.0, 100.0, 999.0, 1000.0, 1e4, 1e6])
@pytest.mark.parametrize("factor", [0.0, 0.5, 0.99, 1.01, 3.0, 40.0])
def test_packets_lost_to_errors(factor: float, packets: float, bound: float) -> None:
    errors = math.ceil(factor * bound / 100 * packets)

    def readings(number: int) -> Iterator[MetricReading]:
        for metric, value in (("packets", packets), ("errors", errors)):
            at = STEP_S * number
            yield sample(f"network_{metric}_total", 5.0 + number * value, at, scope="job")

    found = judged(AlertRule.NETWORK_ERRORS, readings, 2, network_error_percent=bound)
    agree(found, sick=packets >= 1000 and 100 * errors / packets > bound)


@pytest.mark.spec("WATCH-2", "DIAG-3")
@pytest.mark.parametrize("bound", [0.01, 0.125, 1.0])
@pytest.mark.parametrize("operations", [1, 19, 20, 5000])
@pytest.mark.parametrize("factor", [0.01, 0.5, 1.0, 1.5, 8.0, math.inf])
def test_slow_reads_and_writes(factor: float, operations: int, bound: float) -> None:
    """Both limits are set alike here: by default a finding takes more than an alert."""
    took_s = factor * bound

    def readings(number: int) -> Iterator[MetricReading]:
        for edge in (*(each * bound for each in (0.01, 0.5, 1.0, 1.5, 8.0)), math.inf):
            count = number * operations if took_s <= edge else 0
            yield sample("io_latency_seconds_bucket", count, STEP_S * number, le=str(edge))

    found = judged(AlertRule.IO_LATENCY, readings, 2, io_alert_p99_s=bound, io_fault_p99_s=bound)
    agree(found, sick=factor > 1.0 and operations >= 20)


@pytest.mark.spec("WATCH-2", "DIAG-4")
@pytest.mark.parametrize(
    ("reasons", "watts", "severity", "verdict"),
    [
        ((), 300.0, None, Verdict.OK),
        (("gpu_idle", "applications_clocks"), 60.0, None, Verdict.OK),
        (("hw_thermal",), 300.0, Severity.CRITICAL, Verdict.BAD),
        (("sw_thermal",), None, Severity.CRITICAL, Verdict.BAD),
        (("hw_slowdown",), 300.0, Severity.CRITICAL, Verdict.BAD),
        (("power_brake",), 300.0, Severity.CRITICAL, Verdict.BAD),
        *(((each,), 300.0, Severity.CRITICAL, Verdict.BAD) for each in sorted(HEAT)),
        (("sw_power_cap", "hw_thermal"), 399.0, Severity.CRITICAL, Verdict.BAD),
        (("sw_power_cap",), 200.0, Severity.WARNING, Verdict.ATTENTION),
        (("sw_power_cap",), 339.9, Severity.WARNING, Verdict.ATTENTION),
        # A card at work is at its own limit: the alert adds that nothing is broken.
        (("sw_power_cap",), 340.0, Severity.WARNING, Verdict.OK),
        (("sw_power_cap",), 399.0, Severity.WARNING, Verdict.OK),
        (("sw_power_cap",), None, Severity.WARNING, Verdict.OK),
    ],
)
def test_a_slowed_gpu(
    reasons: tuple[str, ...], watts: float | None, severity: Severity | None, verdict: Verdict
) -> None:
    def readings(number: int) -> Iterator[MetricReading]:
        at = STEP_S * number
        yield from card(at, watts=watts, limit_watts=400.0)
        for each in {"hw_thermal", "sw_power_cap", *reasons}:
            on = float(each in reasons)
            yield sample("gpu_throttled", on, at, gpu_uuid=CARD, reason=each)

    assert judged(AlertRule.THROTTLE, readings, 4) == (severity, verdict)


@pytest.mark.spec("WATCH-2", "DIAG-4")
@pytest.mark.parametrize("errors", [0.0, 1.0, 4.0])
def test_a_memory_error_of_a_gpu(errors: float) -> None:
    def readings(number: int) -> Iterator[MetricReading]:
        value = 3.0 + number * errors
        yield sample("gpu_ecc_uncorrected_total", value, STEP_S * number, gpu_uuid=CARD)

    agree(judged(AlertRule.ECC, readings, 2), sick=errors > 0)


@pytest.mark.spec("WATCH-2", "DIAG-4")
@pytest.mark.parametrize(
    "xid", ["13", "31", "43", "45", "48", "63", "74", "79", "94", "119", "999"]
)
def test_an_error_of_the_driver_is_blamed_on_the_same(xid: str) -> None:
    def readings(number: int) -> Iterator[MetricReading]:
        at = STEP_S * number
        yield sample("gpu_ecc_uncorrected_total", 0.0, at, gpu_uuid=CARD)
        yield sample("gpu_xid_total", float(number), at, gpu_uuid=CARD, xid=xid)

    by_program = xid in {"13", "31", "43", "45"}
    assert judged(AlertRule.XID, readings, 2) == (
        (Severity.WARNING, Verdict.ATTENTION) if by_program else (Severity.CRITICAL, Verdict.BAD)
    )


@pytest.mark.spec("OPS-7")
def test_agents_and_servers_have_the_same_defaults() -> None:
    assert AlertsSection().thresholds == Thresholds()
    assert targets_of(DiagSection()) == Targets()
