"""Where a job is measured, and that no value of the host can stand for a slice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.domain.allocation import NodeGpus, State
from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.domain.metric import CATALOGUE, Absence, NotMeasured, Provenance, Sample, labelled
from lattice.domain.node import Condition, NodeHealth
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.presence import AGENT_LOST, Presence, PresenceReading, slices_of
from lattice.domain.slices import (
    GPUS_UNKNOWN,
    PART_OF_A_SLICE,
    PARTLY_IN_A_SLICE,
    HostReadings,
    HostValueOnSlice,
    InSlices,
    JobSite,
    NodeSlice,
    OnHost,
    SliceGpus,
    SliceGuest,
    SliceHost,
    SlicePort,
    SliceReadings,
    SliceState,
    Unplaced,
    nothing_measured,
    ports_text,
    site_of,
    slice_text,
)
from lattice.domain.source import Source
from tests.fakes.cluster import allocation

SLICES = (SliceGpus("a", (0, 1)), SliceGpus("b", (3,)))
TIME = 1.7e9
GUEST = Sample("cpu_cores", 4.0, TIME, Provenance.SLICE_GUEST)
HOST = Sample("cpu_cores", 64.0, TIME)
CARD = Sample("gpu_power_watts", 300.0, TIME, labels=labelled(gpu_uuid="GPU-1"))
ALLOCATION = allocation(1, "alice", "research")
IDENTITY = JobIdentity("boot", 7, 7, TIME)


@pytest.mark.spec("SRC-3")
@pytest.mark.parametrize(
    ("gpus", "site"),
    [
        ((), OnHost()),
        ((2,), OnHost()),
        ((0, 1), InSlices(("a",))),
        ((0, 1, 3), InSlices(("a", "b"))),
        ((0,), Unplaced(PART_OF_A_SLICE.format(name="a"))),
        ((2, 3), Unplaced(PARTLY_IN_A_SLICE)),
        (None, Unplaced(GPUS_UNKNOWN)),
    ],
)
def test_a_job_is_in_a_slice_if_it_has_all_of_its_gpus(
    gpus: tuple[int, ...] | None, site: JobSite
) -> None:
    assert site_of(gpus, SLICES) == site


@pytest.mark.spec("SRC-3")
@pytest.mark.parametrize("gpus", [(), (0,), None])
def test_a_node_without_slices_measures_every_job_itself(gpus: tuple[int, ...] | None) -> None:
    assert site_of(gpus, ()) == OnHost()


@pytest.mark.spec("SRC-3")
@pytest.mark.parametrize("source", [each for each in Provenance if each is not GUEST.source])
def test_readings_of_a_slice_refuse_every_other_source(source: Provenance) -> None:
    if source is Provenance.UNAVAILABLE:
        return
    with pytest.raises(HostValueOnSlice):
        SliceReadings((GUEST, Sample("processes", 3.0, TIME, source)))


@pytest.mark.spec("SRC-3")
def test_readings_of_the_host_refuse_guests_and_cards_in_slices() -> None:
    assert HostReadings((HOST, CARD)).readings == (HOST, CARD)
    with pytest.raises(HostValueOnSlice):
        HostReadings((HOST, GUEST))
    with pytest.raises(HostValueOnSlice):
        HostReadings((HOST, CARD), frozenset({"GPU-1"}))


@pytest.mark.spec("SRC-3")
def test_a_snapshot_of_a_job_has_values_of_a_guest_alone_or_none() -> None:
    JobSnapshot(IDENTITY, TIME, 10.0, (GUEST, Absence("processes", "why")))
    with pytest.raises(NotMeasured):
        JobSnapshot(IDENTITY, TIME, 10.0, (GUEST, CARD))


@pytest.mark.spec("SRC-3", "SRC-2")
def test_no_rate_is_made_of_a_host_value_and_a_guest_value() -> None:
    before = JobSnapshot(IDENTITY, TIME, 10.0, (Sample("cpu_seconds_total", 5.0, TIME),))
    later = Sample("cpu_seconds_total", 9.0, TIME + 10, Provenance.SLICE_GUEST)
    now = JobSnapshot(IDENTITY, TIME + 10, 10.0, (later,))
    (found,) = shown_of(Shown.CPU_UTILIZATION, before, now)
    assert not isinstance(found, ShownValue)


@pytest.mark.spec("SRC-2")
def test_nothing_measured_has_a_reason_for_every_metric() -> None:
    found = nothing_measured("why", "the error")
    assert [each.metric for each in found.readings] == list(CATALOGUE)
    assert {each.reason for each in found.readings if isinstance(each, Absence)} == {"why"}


SPEED = SlicePort(name="eth0", kind="ethernet", up=True, speed_bits=1e11)
GUEST_SLICE = SliceGuest(name="blue", gpus=(0, 1), state=SliceState.HEALTHY, ports=(SPEED,))


def test_a_slice_in_one_line() -> None:
    assert slice_text(GUEST_SLICE) == "blue: 2 GPUs, healthy"
    assert ports_text(GUEST_SLICE) == "eth0 up 100 Gbit/s"
    failed = SliceGuest(
        name="blue", gpus=(0,), state=SliceState.UNAVAILABLE, reason="why", last_error="text"
    )
    assert slice_text(failed) == "blue: 1 GPU, unavailable; why (text)"


def presences(*, linked: bool) -> PresenceReading:
    host = SliceHost(address="10.0.8.2", bridge="br0", netdata="http://n1:19999")
    record = Presence(
        node="n1",
        epoch=1,
        linked=linked,
        since=TIME,
        condition=Condition.READY,
        registered=TIME,
        health=NodeHealth(slices=(NodeSlice(guest=GUEST_SLICE, host=host),)),
    )
    return PresenceReading({"n1": record}, {}, Source(name="agents", ok=True))


@pytest.mark.spec("SRC-3")
def test_an_allocation_has_the_slices_of_its_gpus_and_nothing_of_the_host() -> None:
    mine = replace(ALLOCATION, gpu_indices=(NodeGpus("n1", (0, 1)), NodeGpus("n2", (0,))))
    (found,) = slices_of(mine, presences(linked=True))
    assert (found.node, found.guest) == ("n1", GUEST_SLICE)
    assert "10.0.8.2" not in repr(found)
    assert "br0" not in repr(found)
    other = replace(ALLOCATION, gpu_indices=(NodeGpus("n1", (2,)),))
    assert slices_of(other, presences(linked=True)) == ()
    assert slices_of(replace(mine, state=State.COMPLETED), presences(linked=True)) == ()


def test_a_lost_agent_says_nothing_of_its_slices() -> None:
    mine = replace(ALLOCATION, gpu_indices=(NodeGpus("n1", (0, 1)),))
    (found,) = slices_of(mine, presences(linked=False))
    assert (found.guest.state, found.guest.reason) == (SliceState.UNKNOWN, AGENT_LOST)
