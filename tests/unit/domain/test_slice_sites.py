"""Where a job is measured, and that no value of the host can stand for a slice."""

from __future__ import annotations

import pytest

from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.domain.metric import CATALOGUE, Absence, NotMeasured, Provenance, Sample, labelled
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.slices import (
    GPUS_UNKNOWN,
    PART_OF_A_SLICE,
    PARTLY_IN_A_SLICE,
    HostReadings,
    HostValueOnSlice,
    InSlices,
    JobSite,
    OnHost,
    SliceGpus,
    SliceReadings,
    Unplaced,
    nothing_measured,
    site_of,
)

SLICES = (SliceGpus("a", (0, 1)), SliceGpus("b", (3,)))
TIME = 1.7e9
GUEST = Sample("cpu_cores", 4.0, TIME, Provenance.SLICE_GUEST)
HOST = Sample("cpu_cores", 64.0, TIME)
CARD = Sample("gpu_power_watts", 300.0, TIME, labels=labelled(gpu_uuid="GPU-1"))
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
