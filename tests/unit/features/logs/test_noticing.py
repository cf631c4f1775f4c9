"""Notices of the kernel for jobs that write little, looks for those that write much."""

from __future__ import annotations

import os
import select
import time
from types import SimpleNamespace

import pytest

from lattice.features.logs.node import write_watcher as module
from lattice.features.logs.node.write_watcher import LONGEST_WAIT_S, MUCH, WINDOW_S, Noticing

SOON_S = 0.1


class Job:
    """What was asked for, and a clock that is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked = self.written = 0
        self.noticing = Noticing(lambda: self.now_s, lambda: self.written, self._ask)
        self.waited: list[float] = []

    def _ask(self) -> None:
        self.asked += 1

    def poll(self) -> _Poll:
        """Stands for `select.poll`."""
        return _Poll(self.waited)

    def writes(self, rate: float, *, followed: bool = True) -> float:
        """For one window; for how long the next wait would last."""
        self.now_s += WINDOW_S
        self.written += int(rate * WINDOW_S)
        self.noticing.wait(followed=followed)
        return self.waited[-1]

    def watch(self) -> tuple[int, int]:
        """A watch, and what the kernel would write to it."""
        reader, writer = os.pipe2(os.O_NONBLOCK)
        self.noticing.add(reader)
        self.noticing.wait(followed=True)  # it was woken
        return reader, writer


class _Poll:
    """What is ready counts; for what is not, the wait is noted and nobody waits."""

    def __init__(self, waited: list[float]) -> None:
        self._real = select.poll()
        self.register = self._real.register
        self._waited = waited

    def poll(self, wait_ms: float) -> list[tuple[int, int]]:
        ready = self._real.poll(0)
        self._waited.append(0.0 if ready else wait_ms / 1000)
        return ready


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job()
    stand_in = SimpleNamespace(poll=made.poll, POLLIN=select.POLLIN)
    monkeypatch.setattr(module, "select", stand_in)
    return made


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_a_notice_ends_the_wait(job: Job) -> None:
    _, kernel = job.watch()
    os.write(kernel, b"x")
    assert job.writes(MUCH / 8) == 0.0
    assert job.writes(MUCH / 8) == LONGEST_WAIT_S, "it was heard of once"
    os.close(kernel)
    job.noticing.close()


@pytest.mark.spec("LOG-2")
def test_who_writes_much_is_looked_at_until_quiet_and_then_watched_again(job: Job) -> None:
    watch, kernel = job.watch()
    assert job.writes(MUCH) <= SOON_S
    assert not _is_open(watch), "the writer pays for notices no longer"
    late, other_kernel = os.pipe2(os.O_NONBLOCK)
    job.noticing.add(late)
    assert not _is_open(late), "nor for a file that came in the middle of it"
    assert job.writes(MUCH, followed=False) <= SOON_S
    for asked in (0, 1, 1):
        assert job.writes(0) <= SOON_S
        assert job.asked == asked, "once, not all the time"
    again, third_kernel = job.watch()
    assert job.writes(0) <= SOON_S, "only some of its files may be watched"
    job.noticing.added_all()
    assert job.writes(0) == LONGEST_WAIT_S
    assert job.writes(2 * MUCH) <= SOON_S
    assert not _is_open(again)
    for each in (kernel, other_kernel, third_kernel):
        os.close(each)
    job.noticing.close()


def test_quiet_jobs_are_asked_for_again_now_and_then(job: Job) -> None:
    _, kernel = job.watch()
    job.writes(MUCH)
    for _ in range(20):
        job.writes(0)
    assert job.asked == 2
    os.close(kernel)
    job.noticing.close()


def test_where_the_kernel_has_no_watch_to_give_again_it_is_looked_at(job: Job) -> None:
    _, kernel = job.watch()
    job.writes(MUCH)
    job.writes(0)
    job.writes(0)
    job.noticing.added_all()
    assert job.writes(0) <= SOON_S, "as soon as before the flood, nearly"
    os.close(kernel)
    job.noticing.close()


@pytest.mark.spec("LOG-2")
def test_a_flood_that_comes_back_is_not_interrupted_by_late_watches(job: Job) -> None:
    _, kernel = job.watch()
    job.writes(MUCH)
    job.writes(0)
    job.writes(0)
    job.writes(MUCH)
    job.noticing.added_all()
    assert job.writes(0) <= SOON_S, "still looked at"
    os.close(kernel)
    job.noticing.close()


@pytest.mark.timing
def test_a_notice_ends_a_real_wait_within_a_fifth_of_a_second_and_silence_after_one() -> None:
    noticing = Noticing(time.monotonic, lambda: 0, lambda: None)
    reader, kernel = os.pipe2(os.O_NONBLOCK)
    noticing.add(reader)
    noticing.wait(followed=True)  # it was woken
    os.write(kernel, b"x")
    assert _seconds_of_a_wait(noticing) < 0.2
    assert 0.9 <= _seconds_of_a_wait(noticing) < 1.5
    os.close(kernel)
    noticing.close()


def _seconds_of_a_wait(noticing: Noticing) -> float:
    begun = time.monotonic()
    noticing.wait(followed=True)
    return time.monotonic() - begun
