"""Events of a job on its node: bounded, each kind in its own room, over when the job is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.domain.alert import Alert, Phase
from lattice.domain.run_events import NodeEvents, RunEvent, RunEventKind
from lattice.features.telemetry.node.events import MOST_BYTES, MOST_EVENTS, RunEvents
from lattice.features.telemetry.node.snapshots import MOST_EVENT_BYTES, SnapshotStore
from tests.fakes.node_looks import BEGUN, alert, snapshot
from tests.unit.features.telemetry.node.measuring import QuietJudge


class StandingJudge(QuietJudge):
    """What fires stands until it is cleared."""

    def see(self, snapshot: object, output: float | None) -> tuple[Alert, ...]:  # type: ignore[override]
        told = super().see(snapshot, output)  # type: ignore[arg-type]
        cleared = {each.key for each in told if each.phase is Phase.CLEARED}
        self.firing = tuple(
            each for each in self.firing
            if each.phase is Phase.FIRING and each.key not in cleared
        )  # fmt: skip
        return told


class Store:
    """One job on a node, and its judge."""

    def __init__(self) -> None:
        self.judges: list[StandingJudge] = []
        self.store = SnapshotStore(self._judge)

    def _judge(self) -> StandingJudge:
        self.judges.append(StandingJudge())
        return self.judges[-1]

    def measure(self, after_s: float, *changes: Alert) -> None:
        if not self.judges:
            self.store.appeared(snapshot(0).identity)
        self.judges[-1].next = changes
        self.store.measured(snapshot(after_s))

    def read(self) -> NodeEvents:
        (found,) = self.store.events("n1", 1, BEGUN)
        return found


def reported(number: int, text: str = "done") -> RunEvent:
    return RunEvent(kind=RunEventKind.JOB, time=BEGUN + number, name=str(number), text=text)


CLEARED = alert(phase=Phase.CLEARED, time=BEGUN + 150, text="It is used again.")


def test_an_alert_has_a_begin_and_an_end_once_it_is_over() -> None:
    site = Store()
    site.measure(90, alert())
    (standing,) = site.read().events
    assert (standing.time, standing.ended, standing.lasts) == (BEGUN, None, True)
    site.measure(150, CLEARED)
    (over,) = site.read().events
    assert (over.time, over.ended, over.lasts) == (BEGUN, BEGUN + 150, False)
    assert (over.kind, over.name, over.text) == (
        RunEventKind.ALERT,
        "gpu_idle",
        alert().text,
    )


def test_an_alert_that_stands_at_the_end_is_over_with_the_job() -> None:
    site = Store()
    site.measure(90, alert())
    for _ in range(2):
        site.store.ended(snapshot(0).identity)
    (over,) = site.read().events
    assert (over.ended, over.lasts) == (BEGUN + 90, False)


def test_a_new_judge_does_not_lose_the_alerts_of_the_one_before() -> None:
    site = Store()
    site.measure(90, alert())
    site.store.reload(site._judge)
    assert [each.ended for each in site.read().events] == [BEGUN + 90]


def test_a_node_says_from_when_on_it_knows() -> None:
    site = Store()
    site.measure(1)
    assert site.read().is_from_the_beginning
    late = Store()
    late.measure(300)
    assert not late.read().is_from_the_beginning
    assert late.read().since == BEGUN + 300


def test_a_job_that_was_never_measured_here_has_no_events() -> None:
    site = Store()
    site.store.appeared(snapshot(0).identity)
    assert list(site.store.events("n1", 1, BEGUN)) == []
    assert not SnapshotStore(StandingJudge).report(snapshot(0).identity, reported(1))


def test_what_a_job_reports_pushes_no_alert_out() -> None:
    site = Store()
    site.measure(150, CLEARED)
    for number in range(3 * MOST_EVENTS):
        assert site.store.report(snapshot(0).identity, reported(number))
    found = site.read()
    assert found.dropped > 0
    assert [each.kind for each in found.events].count(RunEventKind.ALERT) == 1
    assert found.events[-1].name == str(3 * MOST_EVENTS - 1)


@pytest.mark.parametrize("text", ["x", "x" * 500, "é" * 500])
def test_the_newest_events_have_a_bounded_size(text: str) -> None:
    events = RunEvents()
    for number in range(1000):
        events.report(reported(number, text))
    found = events.read(())
    assert len(found) <= MOST_EVENTS
    assert events.size_bytes == sum(each.size_bytes for each in found) <= MOST_BYTES
    assert found[-1].name == "999"
    assert events.dropped == 1000 - len(found)


def test_events_of_ended_jobs_make_room_first() -> None:
    site, full = Store(), RunEvent(kind=RunEventKind.JOB, time=BEGUN, text="x" * 500)
    jobs = [replace(snapshot(0).identity, job_id=number) for number in range(1, 301)]
    for identity in jobs:
        site.store.appeared(identity)
        site.store.measured(snapshot(1, job_id=identity.job_id))
        for _ in range(27):
            site.store.report(identity, full)
        if identity.job_id <= 200:
            site.store.ended(identity)
    left = {
        each: sum(len(run.events) for run in site.store.events("n1", each, BEGUN))
        for each in range(1, 301)
    }
    assert sum(left.values()) * full.size_bytes <= MOST_EVENT_BYTES
    assert left[1] == 0
    assert min(left[each] for each in range(201, 301)) == max(left.values())


def test_a_switch_of_the_mode_is_an_event_and_the_first_mode_is_none() -> None:
    modes = iter(("", "prod", "prod", "debug", "prod"))
    site = Store()
    site.store = SnapshotStore(site._judge, mode=lambda _: next(modes))
    for number in range(5):
        site.measure(30.0 * (number + 1))
    assert [(each.kind, each.name, each.time - BEGUN) for each in site.read().events] == [
        (RunEventKind.MODE, "debug", 120),
        (RunEventKind.MODE, "prod", 150),
    ]


def test_a_switch_is_noted_without_a_measurement() -> None:
    modes = ["prod"]
    site = Store()
    site.store = SnapshotStore(site._judge, mode=lambda _: modes[-1])
    site.measure(30.0)
    modes.append("debug")
    for _ in range(2):
        site.store.take_modes(BEGUN + 41)
    site.measure(60.0)
    assert [(each.name, each.time - BEGUN) for each in site.read().events] == [("debug", 41)]


def test_nothing_is_reported_after_the_end() -> None:
    site = Store()
    site.measure(1)
    site.store.ended(snapshot(0).identity)
    assert not site.store.report(snapshot(0).identity, reported(1))
