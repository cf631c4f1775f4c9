"""The last minutes of a job, also when it is over."""

from __future__ import annotations

from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Sample, labelled
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.node.blackbox import _MOST_LIVES, BlackBox

T0 = 1_794_702_390.0


def life(job_id: int = 7) -> JobIdentity:
    return JobIdentity("b", job_id, 1, T0 - 5)


def snapshot(at: float, job_id: int = 7) -> JobSnapshot:
    return JobSnapshot(
        life(job_id),
        at,
        10.0,
        (
            Sample("memory_used_bytes", at - T0, at),
            Sample("threads", 4.0, at),
            Sample("gpu_power_watts", 300.0, at, labels=labelled(gpu_uuid="g")),
        ),
    )


def test_few_counters_of_fifteen_minutes_are_kept() -> None:
    now = [T0]
    box = BlackBox(lambda: now[0])
    for number in range(200):
        now[0] = T0 + 10 * number
        box.note(snapshot(now[0]))
    kept = box.of(life())
    assert [each.time for each in kept] == [now[0] - 900 + 10 * number for number in range(91)]
    assert {each.metric for each in kept[0].samples} == {"memory_used_bytes", "gpu_power_watts"}
    assert kept[-1].of("memory_used_bytes")[0].value == now[0] - T0


def test_a_job_that_is_over_is_kept_as_long_and_no_longer() -> None:
    now = [T0]
    box = BlackBox(lambda: now[0])
    box.note(snapshot(T0))
    now[0] = T0 + 899
    assert len(box.of(life())) == 1
    now[0] = T0 + 901
    assert box.of(life()) == []
    box.note(snapshot(now[0], 8))
    assert box.lives == (life(8),)


def test_what_was_noted_before_the_servers_time_was_known_is_moved() -> None:
    now = [T0]
    box = BlackBox(lambda: now[0])
    box.note(snapshot(T0))
    box.shift(-302.0)
    now[0] = T0 - 302
    (moved,) = box.of(life())
    assert moved.time == T0 - 302
    assert {each.time for each in moved.samples} == {T0 - 302}


def test_a_storm_of_jobs_takes_bounded_memory_and_the_oldest_go() -> None:
    box = BlackBox(lambda: T0)
    for number in range(1, _MOST_LIVES + 11):
        box.note(snapshot(T0 + number / 100, number))
    assert len(box.lives) == _MOST_LIVES
    assert box.of(life(1)) == []
    assert len(box.of(life(_MOST_LIVES + 10))) == 1
