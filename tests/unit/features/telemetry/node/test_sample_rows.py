"""Snapshots as rows and columns: smaller, and the same."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, Sample, labelled
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.node.buffer import MOST_SAMPLES, Layouts, columns_of

LIFE = JobIdentity("b", 7, 1, 1_794_702_000.0)
T0 = 1_794_702_411.0
NAMES = ("threads", "processes", "cpu_seconds_total", "memory_used_bytes")


def snapshot(at: float, *samples: Sample) -> JobSnapshot:
    return JobSnapshot(LIFE, at, 1.0, samples)


def test_a_row_keeps_each_sample_with_its_moment() -> None:
    taken = snapshot(T0, Sample("threads", 3.0, T0 + 0.002), Sample("processes", 2.0, T0 + 0.5))
    (row,) = Layouts().rows_of(taken, taken.samples)
    job = columns_of((row,), T0 - 1)
    points = {each.metric: list(each.points(job.times_ms)) for each in job.series}
    assert points == {"threads": [(T0 + 0.002, 3.0)], "processes": [(T0 + 0.5, 2.0)]}


def test_what_is_no_sample_is_no_value() -> None:
    taken = JobSnapshot(LIFE, T0, 1.0, (Absence("threads", "why"),))
    assert Layouts().rows_of(taken, taken.samples) == []


def test_a_sample_of_well_before_is_told_at_its_own_moment() -> None:
    taken = snapshot(T0, Sample("threads", 3.0, T0), Sample("processes", 2.0, T0 - 20))
    older, timely = Layouts().rows_of(taken, taken.samples)
    assert (older.time_ms, timely.time_ms) == (round((T0 - 20) * 1000), round(T0 * 1000))
    job = columns_of((timely, older), T0 - 100)
    points = {each.metric: list(each.points(job.times_ms)) for each in job.series}
    assert points == {"threads": [(T0, 3.0)], "processes": [(T0 - 20, 2.0)]}


def test_names_stand_once() -> None:
    layouts, rows = Layouts(), []
    for second in range(3):
        taken = snapshot(T0 + second, Sample("threads", 1.0, T0 + second))
        rows += layouts.rows_of(taken, taken.samples)
    assert rows[0].layout is rows[1].layout is rows[2].layout


def test_a_job_with_very_many_series_has_several_rows_and_one_moment() -> None:
    samples = tuple(
        Sample("gpu_xid_total", 1.0, T0, labels=labelled(gpu_uuid=f"g{number}", xid="31"))
        for number in range(MOST_SAMPLES + 1)
    )
    rows = Layouts().rows_of(snapshot(T0, *samples), samples)
    assert [len(row.values) for row in rows] == [MOST_SAMPLES, 1]
    job = columns_of(rows, T0)
    assert len(job.times_ms) == 1
    assert job.count == MOST_SAMPLES + 1


@given(
    st.lists(
        st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1e6), min_size=1),
        min_size=1,
        max_size=8,
    )
)
def test_columns_hold_what_was_measured_at_each_moment_and_nothing_else(
    looks: list[dict[str, float]],
) -> None:
    layouts, rows = Layouts(), []
    for second, values in enumerate(looks):
        samples = [Sample(name, value, T0 + second) for name, value in values.items()]
        rows += layouts.rows_of(snapshot(T0 + second, *samples), samples)
    job = columns_of(rows, T0 - 1)
    assert (job.job_id, job.started) == (7, T0 - 1)
    assert job.count == sum(map(len, looks))
    for each in job.series:
        for place, value in enumerate(each.values):
            told = looks[place].get(each.metric)
            assert math.isnan(value) if told is None else value == told
