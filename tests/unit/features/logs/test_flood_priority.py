"""A thread that reads a flood lowers its priority."""

from __future__ import annotations

from lattice.features.logs.node.capture import FLOOD_BYTES, LOWER, WINDOW_MS, FloodPriority


def lowered(reads: list[tuple[int, int]]) -> list[int]:
    asked: list[int] = []
    priority = FloodPriority(asked.append)
    for size, now_ms in reads:
        priority.took(size, now_ms)
    return asked


def test_lines_do_not() -> None:
    assert lowered([(10_000, 1000 + 100 * number) for number in range(5000)]) == []


def test_much_but_over_a_long_time_does_not() -> None:
    assert lowered([(FLOOD_BYTES, 1000 + WINDOW_MS * number) for number in range(20)]) == []


def test_a_flood_does_once() -> None:
    assert lowered([(1024 * 1024, 1000 + number) for number in range(200)]) == [LOWER]


def test_a_clock_that_is_set_back_begins_a_new_window() -> None:
    assert lowered([(FLOOD_BYTES, 100_000), (FLOOD_BYTES, 5_000)]) == []
