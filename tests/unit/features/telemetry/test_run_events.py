"""The events of a job on a node as a message: the same at the other end, or refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.domain.run_events import LONGEST_TEXT, NodeEvents, RunEvent, RunEventKind
from lattice.features.telemetry.convert.run_events import events_message, events_of
from lattice.features.telemetry.convert.snapshots import BadSnapshot
from lattice.wire.v1 import telemetry_pb2 as pb

T0 = 1_794_702_390.0
_TIMES = st.floats(1.1e9, 9e10, allow_nan=False)
_TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@st.composite
def _events(draw: st.DrawFn) -> RunEvent:
    ended = draw(st.none() | _TIMES)
    return RunEvent(
        kind=draw(st.sampled_from(RunEventKind)),
        time=draw(_TIMES),
        ended=ended,
        lasts=ended is None and draw(st.booleans()),
        name=draw(_TEXTS),
        subject=draw(_TEXTS),
        text=draw(_TEXTS),
        attributes=tuple(draw(st.lists(st.tuples(_TEXTS, _TEXTS), max_size=4))),
    )


_RUNS = st.builds(
    NodeEvents,
    node=st.just("n1"),
    began=_TIMES,
    since=_TIMES,
    dropped=st.integers(0, 1000),
    events=st.lists(_events(), max_size=5).map(tuple),
)


@given(st.lists(_RUNS, max_size=4))
def test_what_is_sent_is_what_is_read(runs: list[NodeEvents]) -> None:
    payload = events_message(runs).SerializeToString()
    assert events_of(payload, "n1") == tuple(runs)


def test_an_answer_fits_and_has_the_newest_runs() -> None:
    event = RunEvent(kind=RunEventKind.JOB, time=T0, text="x" * LONGEST_TEXT)
    runs = [
        NodeEvents(node="n1", began=T0 - at, since=T0, events=(event,) * 60) for at in range(50)
    ]
    message = events_message(runs)
    assert message.ByteSize() <= LARGEST_MESSAGE_BYTES
    found = events_of(message.SerializeToString(), "n1")
    assert 1 <= len(found) < len(runs)
    assert found == tuple(runs[: len(found)])


@pytest.mark.parametrize(
    ("run", "event"),
    [
        ({"began": 0.0}, {}),
        ({"since": math.nan}, {}),
        ({}, {"time": math.inf}),
        ({}, {"ended": -1.0}),
        ({}, {"kind": "other"}),
    ],
)
def test_events_of_no_moment_or_kind_are_refused(
    run: dict[str, Any], event: dict[str, Any]
) -> None:
    message = pb.LookTell(events=pb.RunEventList())
    added = message.events.runs.add(**{"began": T0, "since": T0} | run)
    added.events.add(**{"kind": "job", "time": T0} | event)
    with pytest.raises(BadSnapshot):
        events_of(message.SerializeToString(), "n1")


def test_too_many_events_are_refused() -> None:
    message = pb.LookTell(events=pb.RunEventList())
    added = message.events.runs.add(began=T0, since=T0)
    for _ in range(5000):
        added.events.add(kind="job", time=T0)
    with pytest.raises(BadSnapshot):
        events_of(message.SerializeToString(), "n1")


def test_long_texts_are_cut() -> None:
    message = pb.LookTell(events=pb.RunEventList())
    run = message.events.runs.add(began=T0, since=T0)
    run.events.add(kind="job", time=T0, text="x" * 10_000, name="y" * 10_000)
    ((event,),) = (each.events for each in events_of(message.SerializeToString(), "n1"))
    assert (len(event.text), len(event.name)) == (500, 64)


@given(st.binary(max_size=200))
def test_bytes_of_any_content_are_events_or_refused(payload: bytes) -> None:
    try:
        found = events_of(payload, "n1")
    except BadSnapshot:
        return
    assert all(each.node == "n1" for each in found)
