"""From the kernel's slots to the buckets of a histogram; and why there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.counters import LATENCY, CounterAnswer, CountersUnavailable
from lattice.domain.latency import EDGES, SLOTS, JobTiming, timing_row
from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.domain.metric import Absence, MetricReading, Sample
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.probes.helper_cache import HelperReadings
from lattice.probes.latency import (
    IO_LATENCY,
    NO_ROOM,
    NOT_FOUND,
    NOT_YET,
    RETRANSMITS,
    LatencyProbe,
)
from lattice.probes.probe import ProbeFailed
from tests.fakes.manual_clock import ManualClock


class Line:
    """The helper, as a test has it answer."""

    def __init__(self, told: dict[int, list[Any]] | None = None) -> None:
        self.told = told or {}
        self.failed: dict[str, str] = {}

    def ask(self, want: Sequence[str], jobs: Sequence[int]) -> CounterAnswer:
        assert LATENCY in want
        told = {job: rows for job, rows in self.told.items() if job in jobs}
        return CounterAnswer({LATENCY: told}, self.failed)


def job(number: int = 42, inode: int = 900) -> NodeJob:
    identity = JobIdentity("boot", number, inode, 1_794_702_000.0)
    return NodeJob(identity=identity, started_by=StartSign.FOLDER)


def row(
    calls: dict[int, int], *, inode: int = 900, lost: int = 0, of_node: bool = False
) -> list[int]:
    slots = tuple(calls.get(slot, 0) for slot in range(SLOTS))
    return timing_row(
        JobTiming(inode=inode, slots=slots, retransmits=5, of_node=of_node, lost=lost)
    )


def read(probe: LatencyProbe, of: NodeJob | None = None) -> Sequence[MetricReading]:
    of = of or job()
    return probe.read([of])[of.identity]


def probe_on(line: Line, clock: ManualClock | None = None) -> LatencyProbe:
    clock = clock or ManualClock()
    return LatencyProbe(HelperReadings(line, clock), clock)


def probe_of(*rows: Any) -> LatencyProbe:
    return probe_on(Line({42: list(rows)}))


@pytest.mark.spec("SRC-2")
def test_a_helper_that_can_t_is_a_reason_and_no_number() -> None:
    line = Line({42: [row({3: 1})]})
    line.failed = {LATENCY: "the kernel has no BTF"}
    with pytest.raises(ProbeFailed, match="the kernel has no BTF"):
        read(probe_on(line))


@pytest.mark.spec("SRC-2")
def test_a_helper_that_is_not_there_is_a_reason() -> None:
    class Silent(Line):
        def ask(self, want: Sequence[str], jobs: Sequence[int]) -> CounterAnswer:
            super().ask(want, jobs)
            raise CountersUnavailable("no lattice-helper here", "No such file or directory")

    with pytest.raises(ProbeFailed, match="no lattice-helper here") as failed:
        read(probe_on(Silent()))
    assert failed.value.last_error == "No such file or directory"


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ((), NOT_FOUND),
        ((row({3: 1}, inode=901),), NOT_FOUND),
        (([900],), NO_ROOM),
        (([1, 2],), "lattice-helper told what can't be"),
        ((["x"] * (SLOTS + 4),), "lattice-helper told what can't be"),
    ],
    ids=["nothing", "another life", "no room", "short", "no numbers"],
)
def test_where_there_is_no_number_there_is_a_reason(rows: tuple[Any, ...], reason: str) -> None:
    found = read(probe_of(*rows))
    assert {each.metric for each in found} == {IO_LATENCY, RETRANSMITS}
    assert all(isinstance(each, Absence) and each.reason == reason for each in found)


@pytest.mark.spec("SRC-2")
def test_a_job_that_has_just_begun_is_not_counted_yet() -> None:
    clock = ManualClock()
    identity = JobIdentity("boot", 42, 900, clock.now().timestamp() - 2)
    young = NodeJob(identity=identity, started_by=StartSign.FOLDER)
    probe = probe_on(Line(), clock)
    assert read(probe, young)[0] == Absence(IO_LATENCY, NOT_YET)
    clock.advance(30)
    assert read(probe, young)[0] == Absence(IO_LATENCY, NOT_FOUND)


@pytest.mark.spec("SRC-2")
@given(st.lists(st.one_of(st.none(), st.text(), st.floats(), st.lists(st.integers())), max_size=4))
def test_of_garbage_comes_no_number(rows: list[Any]) -> None:
    assert not [each for each in read(probe_of(*rows)) if isinstance(each, Sample)]


@pytest.mark.spec("SRC-2")
def test_where_too_many_calls_went_untimed_there_is_no_percentile() -> None:
    clock = ManualClock()
    line = Line({42: [row({20: 1000})]})
    probe = probe_on(line, clock)
    read(probe)
    clock.advance(30)
    line.told = {42: [row({20: 1100}, lost=2)]}
    (absence,) = (each for each in read(probe) if each.metric == IO_LATENCY)
    assert isinstance(absence, Absence)
    assert absence.reason == "the kernel could not time 2 calls on this node"
    clock.advance(30)
    line.told = {42: [row({20: 1200}, lost=2)]}
    assert any(isinstance(each, Sample) and each.metric == IO_LATENCY for each in read(probe))


def test_losses_from_before_it_first_looked_are_of_no_matter() -> None:
    found = read(probe_of(row({20: 10}, lost=500)))
    assert [each for each in found if isinstance(each, Absence)] == []


@pytest.mark.spec("TOP-1")
def test_buckets_are_those_of_prometheus() -> None:
    found = [
        each for each in read(probe_of(row({0: 1, 21: 10, 53: 2}))) if isinstance(each, Sample)
    ]
    buckets = {each.label("le"): each.value for each in found if each.metric == IO_LATENCY}
    assert tuple(buckets) == EDGES
    assert (buckets["0.0000625"], buckets["0.001"], buckets["0.002"]) == (1, 1, 11)
    assert (buckets["16.384"], buckets["+Inf"]) == (11, 13)


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize("of_node", [True, False])
def test_whose_segments_were_sent_again_is_labelled(of_node: bool) -> None:
    (sample,) = (
        each for each in read(probe_of(row({}, of_node=of_node))) if each.metric == RETRANSMITS
    )
    assert isinstance(sample, Sample)
    assert (sample.value, sample.label("scope")) == (5, "node" if of_node else "job")


@pytest.mark.spec("TOP-1")
@given(st.integers(13, 48), st.integers(0, 12))
def test_a_p99_is_the_edge_of_the_bucket_that_holds_it(slot: int, faster: int) -> None:
    """Nine hundred fast calls and a hundred slow ones: the edge above the slow ones is shown."""
    clock = ManualClock()
    line = Line({42: [row({slot: 7})]})
    probe = probe_on(line, clock)
    before = JobSnapshot(job().identity, 0.0, 30.0, tuple(read(probe)))
    clock.advance(30)
    line.told = {42: [row({faster: 900, slot: 107})]}
    now = JobSnapshot(job().identity, 30.0, 30.0, tuple(read(probe)))
    (shown,) = shown_of(Shown.IO_LATENCY_P99, before, now)
    assert isinstance(shown, ShownValue)
    counts = {each.label("le"): each.value for each in now.of(IO_LATENCY)}
    edge = next(edge for edge in EDGES if counts[edge] == 1007)
    assert shown.value == float(edge) * 1e6
