"""Spans merged by name: lengths, shares, parents, epochs of many tasks, and bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.span import WrittenMark, WrittenSpan
from lattice.features.timeline.model import (
    MOST_LINE_POINTS,
    MOST_SPAN_NAMES,
    MarkKind,
    SpanKind,
    SpanRow,
)
from lattice.features.timeline.span_rows import SpanMerger

BEGAN = datetime(2026, 11, 15, 13, tzinfo=UTC)
BEGAN_S = BEGAN.timestamp()
HOUR_S = 3600.0


def merger() -> SpanMerger:
    return SpanMerger(BEGAN, BEGAN + timedelta(hours=1))


def span(name: str, begin: float, end: float, number: int = 0, parent: int = 0) -> WrittenSpan:
    return WrittenSpan(name, BEGAN_S + begin, BEGAN_S + end, str(number or ""), str(parent or ""))


def merged(*spans: WrittenSpan, rank: int = -1) -> dict[str, SpanRow]:
    found = merger()
    for each in spans:
        found.add(each, is_named=True, rank=rank)
    return {each.name: each for each in found.spans()}


@pytest.mark.spec("RUN-3")
def test_parents_stand_before_what_is_in_them() -> None:
    rows = merged(
        span("load", 1, 2, 5, 2),
        span("step", 3, 4, 6, 2),
        span("step", 4, 5, 7, 2),
        span("train.epoch", 1, 6, 2, 1),
        span("checkpoint.save", 7, 9, 3, 1),
        span("fit", 0, 10, 1),
    )
    assert [(each.name, each.depth, each.parent) for each in rows.values()] == [
        ("fit", 0, ""),
        ("train.epoch", 1, "fit"),
        ("load", 2, "train.epoch"),
        ("step", 2, "train.epoch"),
        ("checkpoint.save", 1, "fit"),
    ]
    assert [each.kind for each in rows.values()] == [
        SpanKind.SPAN,
        SpanKind.EPOCH,
        SpanKind.SPAN,
        SpanKind.SPAN,
        SpanKind.CHECKPOINT,
    ]
    assert (rows["step"].count, rows["step"].total_s, rows["step"].busy_s) == (2, 2.0, 2.0)


def test_names_that_go_round_in_a_circle_are_each_shown_once() -> None:
    rows = merged(
        span("a", 0, 9, 1, 2),
        span("b", 0, 9, 2, 1),
        span("a", 1, 8, 3, 4),
        span("b", 1, 8, 4, 3),
        span("self", 2, 3, 5, 6),
        span("self", 2, 4, 6, 5),
    )
    assert sorted(rows) == ["a", "b", "self"]


def test_a_number_at_the_end_of_a_name_is_no_name() -> None:
    rows = merged(*(span(f"epoch {n}", n, n + 1) for n in range(40)), span("resnet50", 0, 1))
    assert {name: each.count for name, each in rows.items()} == {"epoch #": 40, "resnet50": 1}


def test_spans_that_follow_each_other_stay_apart() -> None:
    row = merged(*(span("epoch", 10 * n, 10 * n + 10) for n in range(3)))["epoch"]
    assert row.each
    assert [(each.ended - each.started).total_seconds() for each in row.stretches] == [10] * 3


def test_what_overlaps_is_counted_once_as_time() -> None:
    row = merged(span("step", 0, 10), span("step", 5, 20), span("step", 30, 40))["step"]
    assert (row.count, row.total_s, row.busy_s, row.longest_s) == (3, 35.0, 30.0, 15.0)
    assert not row.each
    assert len(row.stretches) == 2


@pytest.mark.spec("RUN-3")
def test_epochs_of_many_tasks_are_those_of_one() -> None:
    found = merger()
    for rank in (3, 0, 1):
        for n in range(2):
            found.add(span("epoch", 10 * n + rank, 10 * n + rank + 10), is_named=True, rank=rank)
            found.add(span("step", 10 * n + rank, 10 * n + rank + 10), is_named=True, rank=rank)
    rows = {each.name: each for each in found.spans()}
    assert (rows["epoch"].rank, rows["epoch"].count, rows["epoch"].each) == (0, 2, True)
    assert (rows["step"].rank, rows["step"].count) == (None, 6)


@pytest.mark.spec("RUN-3")
def test_many_spans_become_shares_of_the_axis() -> None:
    row = merged(*(span("step", n, n + 0.25) for n in range(3600)))["step"]
    assert len(row.stretches) == MOST_LINE_POINTS
    assert not row.each
    assert all(each.share == pytest.approx(0.25, abs=0.02) for each in row.stretches)
    assert row.busy_s == pytest.approx(900)


def test_spans_without_a_job_have_rows_of_their_own() -> None:
    found = merger()
    found.add(span("step", 0, 1), is_named=True)
    found.add(span("step", 0, 5), is_named=False)
    assert {each.named: each.total_s for each in found.spans()} == {True: 1.0, False: 5.0}


def test_marks_are_merged_by_name_with_the_newest_text() -> None:
    found = merger()
    for n in (5, 1, 9):
        mark = WrittenMark("early_stopping", BEGAN_S + n, f"at {n}", is_log=False)
        found.add(span("fit", 0, 10)._replace(marks=(mark,)), is_named=True)
    found.add(WrittenMark("warn", BEGAN_S, "slow", is_log=True), is_named=True)
    event, log = found.marks()
    assert (event.kind, event.count, event.text) == (MarkKind.EVENT, 3, "at 9")
    assert [each.second for each in event.times] == [1, 5, 9]
    assert (log.kind, log.name, log.text) == (MarkKind.LOG, "warn", "slow")


def test_names_have_a_bound() -> None:
    found = merger()
    for n in range(2000):
        found.add(span(f"n{n}x", 0, 1), is_named=True)
        found.add(WrittenMark(f"m{n}x", BEGAN_S, "", is_log=False), is_named=True)
    assert len(found.spans()) == len(found.marks()) == MOST_SPAN_NAMES
    assert found.left_out == 2 * (2000 - MOST_SPAN_NAMES)


_TIMES = st.floats(-HOUR_S, 2 * HOUR_S)


@given(st.lists(st.tuples(_TIMES, st.floats(0, HOUR_S), st.sampled_from("abc")), max_size=300))
def test_lengths_and_shares_fit_each_other(drawn: list[tuple[float, float, str]]) -> None:
    rows = merged(*(span(name, begin, begin + length) for begin, length, name in drawn))
    assert sum(each.count for each in rows.values()) == len(drawn)
    for row in rows.values():
        lengths = [length for _, length, name in drawn if name == row.name]
        assert row.total_s == pytest.approx(sum(lengths), abs=0.01)
        assert row.longest_s == pytest.approx(max(lengths), abs=0.01)
        assert row.busy_s <= row.total_s + 0.01
        assert row.first <= row.last
        shown_s = sum(
            (each.ended - each.started).total_seconds() * each.share for each in row.stretches
        )
        assert shown_s == pytest.approx(row.busy_s, abs=0.01)
        assert all(0.0 <= each.share <= 1.0 for each in row.stretches)


def test_what_lies_beyond_the_axis_fills_its_edge_alone() -> None:
    begins = [n / 2 for n in range(-3600, 3 * 3600)]
    row = merged(*(span("step", each, each + 0.4) for each in begins))["step"]
    assert row.count == len(begins)
    assert row.stretches[0].started >= BEGAN
    assert row.stretches[-1].ended <= BEGAN + timedelta(hours=1)
    assert all(each.share <= 1.0 for each in row.stretches)
