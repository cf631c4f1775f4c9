"""What holds of the rules whatever is measured: the laws of alerts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.alert import Alert, Phase
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import CATALOGUE, Absence, MetricReading, Per, Sample, labelled
from lattice.features.watch.node.judge import AlertJudge
from tests.fakes.node_looks import BEGUN, CARD, OTHER_CARD, snapshot

_LABELS = {
    "scope": ("job", "node"),
    "reason": ("sw_power_cap", "hw_thermal", "memory_thermal", "hw_slowdown", "gpu_idle"),
    "xid": ("31", "79"),
    "le": ("0.001", "0.1", "+Inf"),
    "resource": ("io",),
    "share": ("some",),
    "link": ("pcie", "nvlink", "xgmi"),
    "kind": ("replay", "crc"),
}
_EVERY_SERIES = sorted(CATALOGUE)


@st.composite
def readings(draw: st.DrawFn, time: float) -> list[MetricReading]:
    """Some series measured, some said to be absent, some not told of; each once."""
    found: dict[tuple[str, object], MetricReading] = {}
    for name in draw(st.lists(st.sampled_from(_EVERY_SERIES), max_size=12)):
        metric = CATALOGUE[name]
        values = {each: draw(st.sampled_from(_LABELS[each])) for each in metric.labels}
        if metric.per is Per.GPU:
            values["gpu_uuid"] = draw(st.sampled_from((CARD, OTHER_CARD)))
        labels = labelled(**values)
        if draw(st.booleans()) and draw(st.booleans()):
            found[name, labels] = Absence(name, "said so", labels=labels)
            continue
        most = min(metric.most, 1e6)
        value = draw(st.one_of(st.just(0.0), st.just(most), st.floats(0, most)))
        found[name, labels] = Sample(name, value, BEGUN + time, labels=labels)
    return list(found.values())


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[JobSnapshot, float | None]]:
    told = []
    time = 0.0
    for _ in range(draw(st.integers(1, 8))):
        time += draw(st.sampled_from((-30.0, 0.0, 1.0, 30.0, 61.0, 700.0)))
        output = draw(st.one_of(st.none(), st.just(BEGUN + max(time, 1.0))))
        at = max(time, 0.0)
        told.append((snapshot(at, *draw(readings(at))), output))
    return told


def changes_of(history: list[tuple[JobSnapshot, float | None]]) -> list[Alert]:
    judge = AlertJudge()
    return [change for each, output in history for change in judge.see(each, output)]


FOLLOWS = {
    None: {Phase.FIRING},
    Phase.FIRING: {Phase.CLEARED, Phase.UNKNOWN},
    Phase.UNKNOWN: {Phase.FIRING, Phase.CLEARED},
    Phase.CLEARED: {Phase.FIRING},
}


@pytest.mark.spec("WATCH-2")
@given(histories())
def test_of_one_key_phases_follow_each_other_as_they_must(
    history: list[tuple[JobSnapshot, float | None]],
) -> None:
    last: dict[tuple[str, str], Phase] = {}
    for change in changes_of(history):
        assert change.phase in FOLLOWS[last.get(change.key)], change
        last[change.key] = change.phase


@pytest.mark.spec("WATCH-2")
@given(histories())
def test_what_stands_is_what_was_told_and_has_not_cleared(
    history: list[tuple[JobSnapshot, float | None]],
) -> None:
    judge = AlertJudge()
    standing: dict[tuple[str, str], Phase] = {}
    for each, output in history:
        for change in judge.see(each, output):
            if change.phase is Phase.CLEARED:
                del standing[change.key]
            else:
                standing[change.key] = change.phase
        assert {each.key: each.phase for each in judge.firing} == standing


@given(histories())
def test_the_same_history_is_judged_the_same(
    history: list[tuple[JobSnapshot, float | None]],
) -> None:
    assert changes_of(history) == changes_of(history)


@pytest.mark.spec("WATCH-2")
@given(histories(), st.integers(0, 12))
def test_a_judge_that_begins_in_the_middle_never_clears_what_it_has_not_told(
    history: list[tuple[JobSnapshot, float | None]], at: int
) -> None:
    told = set()
    for change in changes_of(history[at:]):
        assert change.phase is Phase.FIRING or change.key in told
        told.add(change.key)


@pytest.mark.spec("WATCH-2")
@given(histories())
def test_no_alert_is_from_the_future_or_begins_after_it_is_told(
    history: list[tuple[JobSnapshot, float | None]],
) -> None:
    for change in changes_of(history):
        assert BEGUN <= change.since <= change.time
        assert change.text.strip()


@pytest.mark.spec("WATCH-2")
@given(st.lists(st.sampled_from((1.0, 30.0, 120.0)), max_size=20), st.booleans())
def test_nothing_comes_of_nothing(steps: list[float], said: bool) -> None:
    judge, time = AlertJudge(), 0.0
    absences = [Absence(name, "no") for name in _EVERY_SERIES] if said else []
    for step in steps:
        time += step
        assert judge.see(snapshot(time, *absences), None) == ()
    assert judge.firing == ()
    assert judge.progress.last is None
