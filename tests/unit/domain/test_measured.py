"""What people are shown comes from two looks at counters, or it is not shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.measured import (
    NOTHING_DONE,
    NOTHING_YET,
    SHOWN,
    JobSnapshot,
    Shown,
    ShownValue,
    Summing,
    shown_of,
    summed,
)
from lattice.domain.metric import CATALOGUE, Absence, MetricReading, Sample, labelled
from lattice.domain.nodejobs import JobIdentity

NOW = 1_790_000_000.0
JOB = JobIdentity("boot", 7, 42, NOW - 100)
LE = ("0.001", "0.01", "0.1", "+Inf")


def snapshot(time: float, *readings: MetricReading, identity: JobIdentity = JOB) -> JobSnapshot:
    return JobSnapshot(identity, time, 30.0, readings)


def cpu(seconds: float, time: float) -> Sample:
    return Sample("cpu_seconds_total", seconds, time)


def buckets(time: float, *counts: float) -> list[Sample]:
    return [
        Sample("io_latency_seconds_bucket", count, time, labels=labelled(le=le))
        for le, count in zip(LE, counts, strict=True)
    ]


@pytest.mark.spec("TOP-1")
def test_a_rate_is_what_was_counted_over_the_time_between_the_readings() -> None:
    """The moments of the readings, not the aligned ones: a late look is no slower job."""
    before = snapshot(NOW, cpu(10.0, NOW + 0.2))
    now = snapshot(NOW + 30, cpu(55.6, NOW + 30.6))
    (shown,) = shown_of(Shown.CPU_UTILIZATION, before, now)
    assert isinstance(shown, ShownValue)
    assert shown.value == pytest.approx(150.0)


@pytest.mark.spec("SRC-2")
def test_no_rate_without_two_looks_at_the_same_life_of_a_job() -> None:
    now = snapshot(NOW + 30, cpu(55.0, NOW + 30))
    other = JobIdentity("boot", 7, 43, NOW - 10)
    for before in (
        None,
        snapshot(NOW, cpu(10.0, NOW), identity=other),
        snapshot(NOW),
        snapshot(NOW, cpu(60.0, NOW)),
        snapshot(NOW + 30, cpu(10.0, NOW + 30)),
    ):
        (shown,) = shown_of(Shown.CPU_UTILIZATION, before, now)
        assert isinstance(shown, Absence)
        assert shown.reason


@pytest.mark.spec("SRC-2")
def test_what_was_not_measured_says_why() -> None:
    told = Absence("gpu_power_watts", "this node has no NVIDIA driver", "NVML: not found")
    (shown,) = shown_of(Shown.GPU_POWER_DRAW, None, snapshot(NOW, told))
    assert shown == told
    (shown,) = shown_of(Shown.GPU_POWER_DRAW, None, snapshot(NOW))
    assert isinstance(shown, Absence)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((100, 100, 100, 100), 1_000.0),
        ((0, 99, 100, 100), 10_000.0),
        ((0, 98, 100, 100), 100_000.0),
        ((0, 0, 0, 100), None),
        ((0, 0, 0, 0), None),
    ],
)
def test_the_99th_of_a_hundred(counts: tuple[float, ...], expected: float | None) -> None:
    before = snapshot(NOW, *buckets(NOW, 5, 5, 5, 5))
    now = snapshot(NOW + 1, *buckets(NOW + 1, *(each + 5 for each in counts)))
    (shown,) = shown_of(Shown.IO_LATENCY_P99, before, now)
    if expected is None:
        assert isinstance(shown, Absence)
    else:
        assert isinstance(shown, ShownValue)
        assert shown.value == pytest.approx(expected)


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(("done", "reason"), [(5.0, NOTHING_DONE), (0.0, NOTHING_YET)])
def test_where_nothing_is_read_it_is_told_whether_anything_ever_was(
    done: float, reason: str
) -> None:
    before = snapshot(NOW, *buckets(NOW, done, done, done, done))
    now = snapshot(NOW + 1, *buckets(NOW + 1, done, done, done, done))
    (shown,) = shown_of(Shown.IO_LATENCY_P99, before, now)
    assert isinstance(shown, Absence)
    assert shown.reason == reason


def test_every_shown_metric_is_made_of_one_of_the_catalogue() -> None:
    assert set(SHOWN) == set(Shown)
    for showing in SHOWN.values():
        assert showing.series in CATALOGUE


@given(st.sampled_from(Shown), st.lists(st.floats(0, 1e9), max_size=8))
def test_a_summary_is_within_what_it_sums_up(metric: Shown, values: list[float]) -> None:
    told = summed(metric, values)
    if not values:
        assert told is None
        return
    assert told is not None
    if SHOWN[metric].summing is Summing.TOTAL:
        assert told == pytest.approx(sum(values))
    else:
        assert min(values) * 0.999999 <= told <= max(values) * 1.000001
