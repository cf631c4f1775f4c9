"""Notices of the kernel for jobs that write little, looks for those that write much."""

from __future__ import annotations

import os
import time

import pytest

from lattice.features.logs.node.noticing import MUCH, WINDOW_S, Noticing


class Job:
    """What was asked for, and a clock that is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked = self.written = 0
        self.noticing = Noticing(lambda: self.now_s, lambda: self.written, self._ask)

    def _ask(self) -> None:
        self.asked += 1

    def writes(self, rate: float, *, followed: bool = True) -> float:
        """For one window; how long a wait takes then that nothing ends."""
        self.now_s += WINDOW_S
        self.written += int(rate * WINDOW_S)
        begun = time.monotonic()
        self.noticing.wait(followed=followed)
        return time.monotonic() - begun

    def watch(self) -> tuple[int, int]:
        """A watch, and what the kernel would write to it."""
        reader, writer = os.pipe2(os.O_NONBLOCK)
        self.noticing.add(reader)
        self.noticing.wait(followed=True)  # it was woken
        return reader, writer


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_a_notice_ends_the_wait() -> None:
    job = Job()
    _, kernel = job.watch()
    os.write(kernel, b"x")
    assert job.writes(MUCH / 8) < 0.2
    assert job.writes(MUCH / 8) >= 0.9, "it was heard of once"
    os.close(kernel)
    job.noticing.close()


@pytest.mark.spec("LOG-2")
def test_who_writes_much_is_looked_at_until_quiet_and_then_watched_again() -> None:
    job = Job()
    watch, kernel = job.watch()
    assert job.writes(MUCH) < 0.2
    assert not _is_open(watch), "the writer pays for notices no longer"
    late, other_kernel = os.pipe2(os.O_NONBLOCK)
    job.noticing.add(late)
    assert not _is_open(late), "nor for a file that came in the middle of it"
    assert job.writes(MUCH, followed=False) < 0.3
    for asked in (0, 1, 1):
        assert job.writes(0) < 0.3
        assert job.asked == asked, "once, not all the time"
    again, third_kernel = job.watch()
    assert job.writes(0) < 0.3, "only some of its files may be watched"
    job.noticing.added_all()
    assert job.writes(0) >= 0.9
    assert job.writes(2 * MUCH) < 0.2
    assert not _is_open(again)
    for each in (kernel, other_kernel, third_kernel):
        os.close(each)
    job.noticing.close()


def test_quiet_jobs_are_asked_for_again_now_and_then() -> None:
    job = Job()
    _, kernel = job.watch()
    job.writes(MUCH)
    for _ in range(20):
        job.writes(0)
    assert job.asked == 2
    os.close(kernel)
    job.noticing.close()


def test_where_the_kernel_has_no_watch_to_give_again_it_is_looked_at() -> None:
    job = Job()
    _, kernel = job.watch()
    job.writes(MUCH)
    job.writes(0)
    job.writes(0)
    job.noticing.added_all()
    assert job.writes(0) < 0.3, "as soon as before the flood, nearly"
    os.close(kernel)
    job.noticing.close()


@pytest.mark.spec("LOG-2")
def test_a_flood_that_comes_back_is_not_interrupted_by_late_watches() -> None:
    job = Job()
    _, kernel = job.watch()
    job.writes(MUCH)
    job.writes(0)
    job.writes(0)
    job.writes(MUCH)
    job.noticing.added_all()
    assert job.writes(0) < 0.3, "still looked at"
    os.close(kernel)
    job.noticing.close()
