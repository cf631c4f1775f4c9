"""The server's own figures, as a scraper reads them."""

from __future__ import annotations

from lattice.base.pauses import LoopPauses
from lattice.foundation.own_metrics import OwnMetrics
from tests.fakes.manual_clock import ManualClock


def test_the_longest_pause_of_the_event_loop_is_shown() -> None:
    figures, clock = OwnMetrics(), ManualClock()
    pauses = LoopPauses(clock.monotonic)
    figures.show_pauses(pauses)
    now = clock.monotonic()
    pauses.note(now, now + 0.5)
    pauses.note(now + 1, now + 1.25)
    text = figures.text()
    assert "# TYPE lattice_event_loop_longest_pause_seconds gauge" in text
    assert "lattice_event_loop_longest_pause_seconds 0.5" in text
    assert "lattice_event_loop_busy_seconds_total 0.75" in text
    assert "lattice_event_loop_turns_total 2.0" in text


def test_a_counter_has_one_line_for_each_value_of_its_label() -> None:
    figures = OwnMetrics()
    counts = {"one": 0, 'an "odd" name': 2}
    figures.count_by("loop_failures_total", "loop", lambda: counts)
    text = figures.text()
    assert "# TYPE lattice_loop_failures_total counter" in text
    assert 'lattice_loop_failures_total{loop="one"} 0.0' in text
    assert 'lattice_loop_failures_total{loop="an \\"odd\\" name"} 2.0' in text
