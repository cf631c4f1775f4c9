"""What waits to be stored: bounded in time and in bytes, oldest first, losses counted."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, Sample
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.node.buffer import SampleBuffer

T0 = 1_794_702_390.0
LIFE = JobIdentity("b", 7, 1, T0 - 5)


class Now:
    def __init__(self) -> None:
        self.time = T0

    def __call__(self) -> float:
        return self.time


def snapshot(at: float, width: int = 2) -> JobSnapshot:
    names = ("threads", "processes", "cpu_cores", "cpu_seconds_total")[:width]
    return JobSnapshot(LIFE, at, 1.0, tuple(Sample(name, 1.0, at) for name in names))


def filled(now: Now, seconds: int, most_bytes: int = 1 << 20) -> SampleBuffer:
    buffer = SampleBuffer(now, most_bytes)
    for second in range(seconds):
        now.time = T0 + second
        buffer.add(snapshot(now.time))
    return buffer


def moments(buffer: SampleBuffer) -> list[float]:
    rows = buffer.take(1 << 30)
    buffer.give_back(rows)
    return [row.time_ms / 1000 for row in rows]


@pytest.mark.spec("TOP-2")
def test_servers_that_are_away_for_fifteen_minutes_lose_nothing() -> None:
    buffer = filled(Now(), 900)
    assert buffer.lost_total == 0
    assert moments(buffer) == [T0 + second for second in range(900)]


@pytest.mark.spec("TOP-2")
def test_what_waited_longer_goes_oldest_first_and_is_counted() -> None:
    buffer = filled(Now(), 1000)
    assert moments(buffer)[0] == T0 + 99
    assert buffer.lost_total == 99 * 2


@pytest.mark.spec("TOP-2")
def test_what_has_no_room_goes_oldest_first_and_is_counted() -> None:
    buffer = filled(Now(), 100, most_bytes=10 * 420)
    assert moments(buffer) == [T0 + second for second in range(90, 100)]
    assert buffer.lost_total == 90 * 2
    assert buffer.size_bytes <= 10 * 420


def test_what_is_taken_is_oldest_first_and_fits() -> None:
    buffer = filled(Now(), 100)
    taken = buffer.take(220 + 20 * 9 + 1)
    assert [row.time_ms / 1000 for row in taken] == [T0 + second for second in range(9)]
    assert moments(buffer)[0] == T0 + 9


def test_what_is_not_wanted_stays_where_it_is() -> None:
    buffer = filled(Now(), 10)
    taken = buffer.take(1 << 20, lambda row: row.time_ms % 2000 == 0)
    assert [row.time_ms / 1000 for row in taken] == [T0 + second for second in range(0, 10, 2)]
    assert moments(buffer) == [T0 + second for second in range(1, 10, 2)]
    assert buffer.take(1 << 20, lambda _: False) == []
    buffer.give_back(taken)
    assert buffer.size_bytes == filled(Now(), 10).size_bytes
    assert sorted(moments(buffer)) == [T0 + second for second in range(10)]


def test_one_that_is_too_large_is_taken_alone() -> None:
    buffer = filled(Now(), 2)
    assert len(buffer.take(1)) == 1


def test_what_was_not_stored_is_the_oldest_again() -> None:
    buffer = filled(Now(), 10)
    size = buffer.size_bytes
    buffer.give_back(buffer.take(500))
    assert moments(buffer) == [T0 + second for second in range(10)]
    assert buffer.size_bytes == size


async def test_waiting_ends_when_there_is_something() -> None:
    buffer = SampleBuffer(Now(), 1 << 20)
    waiting = asyncio.create_task(buffer.some())
    await asyncio.sleep(0)
    buffer.add(JobSnapshot(LIFE, T0, 1.0, (Absence("threads", "why"),)))
    await asyncio.sleep(0)
    assert not waiting.done(), "a reason is nothing to store"
    buffer.add(snapshot(T0))
    await asyncio.wait_for(waiting, 60)
    buffer.take(1 << 20)
    assert not buffer._some.is_set()


def test_what_was_stamped_before_the_servers_time_was_known_is_moved() -> None:
    buffer = filled(Now(), 2)
    buffer.shift(-302.0)
    assert moments(buffer) == [T0 - 302, T0 - 301]


@pytest.mark.spec("TOP-2")
@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 400)), max_size=30), st.integers(1, 9))
def test_every_sample_waits_or_is_counted(steps: list[tuple[int, float]], rows: int) -> None:
    now = Now()
    buffer, added = SampleBuffer(now, rows * 440), 0
    for width, pause in steps:
        now.time += pause
        buffer.add(snapshot(now.time, width))
        added += width
        assert buffer.samples + buffer.lost_total == added
        assert buffer.size_bytes == sum(row.size_bytes for row in buffer._rows)
        assert buffer.size_bytes <= rows * 440
