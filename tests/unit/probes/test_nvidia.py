"""The NVIDIA probe on the real binding, over a compiled library that says what a test wants."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.gpus import STATE, NvmlState, build_library, mig_uuid_of, uuid_of
from lattice.domain.metric import CATALOGUE, Absence, MetricReading, Per, Sample, labelled
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.probes.card_probe import NO_GPUS, NOT_KNOWN_YET
from lattice.probes.nvidia import (
    MIG_NOT_LISTED,
    NO_SUCH_CARD,
    NOT_LISTED,
    NvidiaProbe,
)
from lattice.probes.nvidia_card import LOST, MIG_MEMORY, MIG_UTILISATION, NO_NUMBER, NOT_REPORTED
from lattice.probes.nvidia_xids import NONE_YET, XIDS
from lattice.probes.nvml import AMD_CARDS, BROKEN, NO_CARDS, NO_DRIVER, NOT_INSTALLED, Nvml
from lattice.probes.probe import ProbeFailed
from lattice.probes.registry import Registry
from tests.fakes.manual_clock import RECORDED, ManualClock
from tests.fakes.nvml.library import load, run_with

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None, reason="the library is compiled, and there is no C compiler"
)
GIB = 2**30


def job(number: int = 7) -> NodeJob:
    started = RECORDED.timestamp()
    return NodeJob(
        identity=JobIdentity("boot", number, number, started), started_by=StartSign.FOLDER
    )


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def cards(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlState:
    load(library)
    monkeypatch.setenv(STATE, str(tmp_path / "state"))
    return NvmlState(tmp_path / "state")


class Site:
    """The probe of a node, and what the servers told it."""

    def __init__(self, devices: Sequence[str] = ()) -> None:
        self.clock = ManualClock()
        self.told: dict[int, tuple[int, ...] | None] = {}
        self.probe = NvidiaProbe(self._gpus_of, self.clock, devices=devices)

    def _gpus_of(self, job_id: int) -> tuple[int, ...] | None:
        return self.told.get(job_id)

    def read(self, indices: tuple[int, ...] | None, number: int = 7) -> list[MetricReading]:
        self.told[number] = indices
        return list(self.probe.read([job(number)])[job(number).identity])


@pytest.fixture
def site(cards: NvmlState) -> Iterator[Site]:
    made = Site()
    yield made
    made.probe.close()


def samples(readings: Sequence[MetricReading], metric: str) -> dict[str, float]:
    return {
        each.label("gpu_uuid"): each.value
        for each in readings
        if isinstance(each, Sample) and each.metric == metric
    }


def absences(readings: Sequence[MetricReading], metric: str = "") -> list[Absence]:
    return [
        each
        for each in readings
        if isinstance(each, Absence) and (not metric or each.metric == metric)
    ]


@pytest.mark.spec("TOP-2")
def test_slurms_index_is_the_minor_number_and_not_nvmls_index(site: Site) -> None:
    power = samples(site.read((0, 1)), "gpu_power_watts")
    # The library's minor numbers count down from 7.
    assert power == {uuid_of(7): 312.5, uuid_of(6): 312.5}


@pytest.mark.spec("TOP-1")
def test_a_card_at_work_tells_everything_in_base_units(site: Site, cards: NvmlState) -> None:
    cards.card(0, throttle=0x24, ecc_corrected=12, ecc_uncorrected=1)
    readings = site.read((7,))
    told = {
        (each.metric, each.label("reason")): each.value
        for each in readings
        if isinstance(each, Sample)
    }
    assert told == {
        ("gpu_utilization_percent", ""): 87,
        ("gpu_memory_used_bytes", ""): 30 * GIB,
        ("gpu_memory_total_bytes", ""): 40 * GIB,
        ("gpu_power_watts", ""): 312.5,
        ("gpu_power_limit_watts", ""): 400,
        ("gpu_energy_joules_total", ""): 5000,
        ("gpu_temperature_celsius", ""): 61,
        ("gpu_clock_sm_hertz", ""): 1410e6,
        ("gpu_clock_memory_hertz", ""): 1215e6,
        ("gpu_throttled", "sw_power_cap"): 1,
        ("gpu_throttled", "hw_slowdown"): 0,
        ("gpu_throttled", "sw_thermal"): 1,
        ("gpu_throttled", "hw_thermal"): 0,
        ("gpu_throttled", "power_brake"): 0,
        ("gpu_ecc_corrected_total", ""): 12,
        ("gpu_ecc_uncorrected_total", ""): 1,
        ("gpu_pcie_tx_bytes_per_second", ""): 2_000_000,
        ("gpu_pcie_rx_bytes_per_second", ""): 3_000_000,
        ("gpu_nvlink_bytes_total", ""): 1500 * 1024,
    }
    assert {each.metric for each in readings} == site.probe.metrics


@pytest.mark.spec("TOP-1")
def test_its_metrics_are_those_of_the_catalogue_but_for_those_of_dcgm_and_amd() -> None:
    of_gpus = {name for name, metric in CATALOGUE.items() if metric.per is Per.GPU}
    assert of_gpus - NvidiaProbe.metrics == {
        "gpu_sm_occupancy_percent",
        "gpu_link_errors_total",
        "gpu_xgmi_bytes_total",
    }


@pytest.mark.spec("TOP-2")
def test_two_jobs_are_told_of_their_own_cards_only(site: Site) -> None:
    site.told = {7: (0, 1, 2), 8: (5,)}
    found = site.probe.read([job(7), job(8)])
    seven = samples(list(found[job(7).identity]), "gpu_utilization_percent")
    eight = samples(list(found[job(8).identity]), "gpu_utilization_percent")
    assert set(seven) == {uuid_of(7), uuid_of(6), uuid_of(5)}
    assert set(eight) == {uuid_of(2)}


@pytest.mark.spec("SRC-2", "SRC-4")
def test_a_job_without_gpus_is_one_absence_a_metric_and_wakes_no_driver(
    site: Site, cards: NvmlState
) -> None:
    cards.init_fails(9)
    readings = site.read(())
    assert {each.reason for each in absences(readings)} == {NO_GPUS}
    assert sorted(each.metric for each in readings) == sorted(site.probe.metrics)


@pytest.mark.spec("SRC-2")
def test_before_the_servers_have_told_there_is_no_number(site: Site) -> None:
    readings = site.read(None)
    assert {each.reason for each in absences(readings)} == {NOT_KNOWN_YET}
    assert len(absences(readings)) == len(readings)


@pytest.mark.spec("SRC-2", "SRC-4")
@pytest.mark.parametrize(
    ("code", "words"), [(9, "Driver Not Loaded"), (18, "Driver/library version mismatch")]
)
def test_a_broken_driver_is_told_in_nvmls_own_words(
    site: Site, cards: NvmlState, code: int, words: str
) -> None:
    cards.init_fails(code)
    readings = site.read((0,))
    assert {(each.reason, each.last_error) for each in absences(readings)} == {
        (BROKEN, f"Failed to initialize NVML: {words}")
    }
    assert {each.metric for each in readings} == site.probe.metrics


@pytest.mark.spec("SRC-2")
def test_a_driver_that_was_mended_is_found_again_without_a_restart(
    site: Site, cards: NvmlState
) -> None:
    cards.init_fails(9)
    site.read((0,))
    cards.init_works()
    assert not samples(site.read((0,)), "gpu_power_watts"), "asked again at once"
    site.clock.advance(31)
    assert samples(site.read((0,)), "gpu_power_watts") == {uuid_of(7): 312.5}


@pytest.mark.spec("SRC-2", "SRC-4")
def test_no_cards_behind_a_sound_driver(site: Site, cards: NvmlState) -> None:
    cards.cards(0)
    assert {each.reason for each in absences(site.read((0,)))} == {NO_CARDS}


@pytest.mark.spec("OPS-9", "SRC-2", "SRC-4")
def test_without_the_extra_every_metric_says_so() -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    clock = ManualClock()
    probe = NvidiaProbe(lambda _: (0,), clock, nvml=Nvml(clock, load=missing))
    readings = probe.read([job()])[job().identity]
    assert {(each.metric, each.reason) for each in absences(readings)} == {
        (metric, NOT_INSTALLED) for metric in probe.metrics
    }


@pytest.mark.spec("OPS-9", "SRC-4")
def test_a_node_with_cards_of_amd_says_that_they_are_not_measured(tmp_path: Path) -> None:
    def no_driver() -> Any:
        raise ProbeFailed(NO_DRIVER, "libnvidia-ml.so.1: cannot open shared object file")

    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    clock = ManualClock()
    for binding in (no_driver, missing):
        nvml = Nvml(clock, load=binding, amd_driver=tmp_path)
        probe = NvidiaProbe(lambda _: (0,), clock, nvml=nvml)
        readings = probe.read([job()])[job().identity]
        assert {each.reason for each in absences(readings)} == {AMD_CARDS}
        assert probe.condition().nothing == AMD_CARDS


_ASK = """
import json
from lattice.base.clock import SystemClock
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.probes.nvidia import NvidiaProbe
job = NodeJob(identity=JobIdentity("boot", 7, 7, 1.7e9), started_by=StartSign.FOLDER)
readings = NvidiaProbe(lambda _: (0,), SystemClock()).read([job])[job.identity]
told = [[each.metric, getattr(each, "value", None), getattr(each, "reason", "")]
        for each in readings]
print(json.dumps(told))
"""


@pytest.mark.story
@pytest.mark.spec("OPS-9", "SRC-2", "SRC-4")
def test_a_node_without_a_driver_says_so() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    said = subprocess.run(
        [sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, check=True
    )
    answers = json.loads(said.stdout)
    assert {(value, reason) for _, value, reason in answers} == {(None, NO_DRIVER)}


def test_an_agent_finds_the_library_on_its_path(library: Path, tmp_path: Path) -> None:
    state = NvmlState(tmp_path / "state", cards=2)
    state.card(1, utilization=3)
    answers = json.loads(run_with(library, state.file, _ASK).stdout)
    assert ["gpu_utilization_percent", 3.0, ""] in answers


@pytest.mark.spec("SRC-2")
def test_what_a_card_does_not_tell_is_absent_alone(site: Site, cards: NvmlState) -> None:
    cards.fails(7, "ecc_corrected", 3)
    cards.fails(7, "power", 4)
    readings = site.read((0,))
    (ecc,) = absences(readings, "gpu_ecc_corrected_total")
    (power,) = absences(readings, "gpu_power_watts")
    assert (ecc.reason, ecc.last_error) == (NOT_REPORTED, "Not Supported")
    assert power.last_error == "Insufficient Permissions"
    assert samples(readings, "gpu_utilization_percent") == {uuid_of(7): 87}


@pytest.mark.spec("SRC-2")
def test_a_card_without_nvlink_says_so(site: Site, cards: NvmlState) -> None:
    cards.fails(7, "nvlink_rx", 3)
    (link,) = absences(site.read((0,)), "gpu_nvlink_bytes_total")
    assert link.reason == NOT_REPORTED


@pytest.mark.spec("TOP-1")
def test_a_card_that_was_busy_for_weeks_still_tells_its_nvlink(
    site: Site, cards: NvmlState
) -> None:
    cards.card(7, nvlink_tx=600_000_000_000_000, nvlink_rx=1)
    told = samples(site.read((0,)), "gpu_nvlink_bytes_total")
    assert told == {uuid_of(7): pytest.approx(6.144e17)}


@pytest.mark.spec("DIAG-2", "SRC-2")
def test_what_nvlink_can_carry_is_the_sum_of_the_links_that_are_up(
    site: Site, cards: NvmlState
) -> None:
    cards.card(6, nvlink_up_3=0, nvlink_up_7=0)
    cards.fails(5, "nvlink_up_4", 3)
    cards.fails(4, "nvlink_speed_2", 999)
    cards.card(3, nvlink_count=0)
    cards.fails(2, "nvlink_count", 3)
    cards.card(1, nvlink_count=1_000_000)
    site.read((0,))
    told = {each.uuid: (each.nvlinks, each.nvlink_bytes_s) for each in site.probe.condition().cards}
    assert told[uuid_of(7)] == (12, 600e9)
    assert told[uuid_of(6)] == (10, 500e9)
    for card in (5, 4, 3, 2, 1):
        assert told[uuid_of(card)] == (None, None), card


@pytest.mark.spec("SRC-2")
def test_a_card_that_vanishes_is_an_absence_and_its_neighbour_is_not(
    site: Site, cards: NvmlState
) -> None:
    before = site.read((0, 1))
    cards.card(7, lost=1)
    after = site.read((0, 1))
    assert set(samples(before, "gpu_power_watts")) == {uuid_of(7), uuid_of(6)}
    assert set(samples(after, "gpu_power_watts")) == {uuid_of(6)}
    (gone,) = absences(after, "gpu_power_watts")
    assert (gone.reason, gone.last_error) == (LOST, "GPU is lost")
    assert gone.labels == labelled(gpu_uuid=uuid_of(7)), "it keeps its name"


@pytest.mark.spec("SRC-2")
def test_a_card_that_was_gone_before_the_agent_came_is_no_number(
    site: Site, cards: NvmlState
) -> None:
    cards.card(7, gone=1)
    readings = site.read((0, 1))
    assert set(samples(readings, "gpu_power_watts")) == {uuid_of(6)}
    assert NO_SUCH_CARD in {each.reason for each in absences(readings)}


@pytest.mark.spec("SRC-2")
def test_mig_gives_no_utilisation_and_memory_by_instance(cards: NvmlState) -> None:
    cards.instance(7, 0, used=3 * GIB, total=5 * GIB)
    cards.instance(7, 2, used=1 * GIB, total=5 * GIB)
    readings = Site(["/dev/nvidia0"]).read((0,))
    assert not samples(readings, "gpu_utilization_percent")
    assert MIG_UTILISATION in {
        each.reason for each in absences(readings, "gpu_utilization_percent")
    }
    # The card's own figure would count twice in a total.
    assert samples(readings, "gpu_memory_used_bytes") == {
        mig_uuid_of(7, 0): 3 * GIB,
        mig_uuid_of(7, 2): 1 * GIB,
    }
    assert MIG_MEMORY in {each.reason for each in absences(readings, "gpu_memory_used_bytes")}
    assert samples(readings, "gpu_power_watts") == {uuid_of(7): 312.5}


@pytest.mark.spec("TOP-2")
def test_a_job_on_one_instance_is_told_nothing_of_the_others(cards: NvmlState) -> None:
    cards.instance(7, 0, used=3 * GIB, total=5 * GIB)
    cards.instance(7, 1, used=1 * GIB, total=5 * GIB)
    site = Site([mig_uuid_of(7, 0), mig_uuid_of(7, 1)])
    readings = site.read((1,))
    assert {each.label("gpu_uuid") for each in readings if isinstance(each, Sample)} == {
        mig_uuid_of(7, 1)
    }
    assert samples(readings, "gpu_memory_used_bytes") == {mig_uuid_of(7, 1): 1 * GIB}
    assert not samples(readings, "gpu_power_watts"), "the card is shared"


@pytest.mark.spec("SRC-2", "TOP-2")
def test_with_mig_and_no_word_on_which_instance_is_which_nothing_is_shown(
    site: Site, cards: NvmlState
) -> None:
    cards.instance(7, 0, used=GIB, total=5 * GIB)
    readings = site.read((0,))
    assert {each.reason for each in absences(readings)} == {MIG_NOT_LISTED}
    assert len(absences(readings)) == len(readings)


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize(
    ("devices", "index", "expected"),
    [
        (["/dev/nvidia4", "/dev/nvidia5"], 1, uuid_of(2)),
        (["/var/lib/site/dev/nvidia4"], 0, uuid_of(3)),
        ([uuid_of(3)], 0, uuid_of(3)),
        (["/dev/nvidia4"], 1, NOT_LISTED),
        (["/dev/nvidia77"], 0, NO_SUCH_CARD),
        (["GPU-of-another-node"], 0, NO_SUCH_CARD),
        ([], 99, NO_SUCH_CARD),
    ],
)
def test_a_site_may_say_what_each_of_slurms_numbers_is(
    cards: NvmlState, devices: list[str], index: int, expected: str
) -> None:
    readings = Site(devices).read((index,))
    if expected.startswith("GPU-"):
        assert set(samples(readings, "gpu_power_watts")) == {expected}
    else:
        assert {each.reason for each in absences(readings)} == {expected}


@pytest.mark.spec("TOP-1")
def test_xids_are_counted_by_number_since_the_agent_started(site: Site, cards: NvmlState) -> None:
    (quiet,) = absences(site.read((0,)), XIDS)
    assert quiet.reason == NONE_YET
    cards.xid(7, 31)
    cards.xid(7, 79)
    cards.xid(6, 13)
    cards.card(7, lost=1)
    cards.xid(7, 31)
    counted = {
        (each.label("gpu_uuid"), each.label("xid")): each.value
        for each in site.read((0, 1))
        if isinstance(each, Sample) and each.metric == XIDS
    }
    assert counted == {
        (uuid_of(7), "31"): 2,
        (uuid_of(7), "79"): 1,
        (uuid_of(6), "13"): 1,
    }, "also of a card that can't be asked for its name any more"


@pytest.mark.spec("TOP-1")
def test_a_lost_card_does_not_make_the_agent_deaf_to_the_others(
    site: Site, cards: NvmlState
) -> None:
    site.read((0,))
    cards.card("*", events_lost=1)
    cards.card(7, lost=1)
    cards.xid(6, 74)
    site.read((0, 1))
    told = [each for each in site.read((0, 1)) if isinstance(each, Sample) and each.metric == XIDS]
    assert [(each.label("gpu_uuid"), each.label("xid")) for each in told] == [(uuid_of(6), "74")]


@pytest.mark.spec("SRC-2")
def test_a_card_that_reports_no_events_says_so(site: Site, cards: NvmlState) -> None:
    cards.fails(7, "events", 4)
    (deaf,) = absences(site.read((0,)), XIDS)
    assert (deaf.reason, deaf.last_error) == (NOT_REPORTED, "Insufficient Permissions")


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "blank",
    [
        0xFFFF_FFFF_FFFF_FFFF,
        0x7FFF_FFFF_FFFF_FFF0,
        0x7FFF_FFFF_FFFF_FFF3,
        2**47,
        14073748835532800,
    ],
)
def test_a_blank_never_becomes_a_number(site: Site, cards: NvmlState, blank: int) -> None:
    cards.card(7, memory_used=blank, energy=blank, throttle=blank, ecc_corrected=blank)
    cards.card(7, power=0xFFFF_FFFF, temperature=0x7FFF_FFF0, utilization=0xFFFF_FFFF)
    cards.card(7, nvlink_tx=blank)
    readings = site.read((0,))
    for metric in (
        "gpu_memory_used_bytes",
        "gpu_energy_joules_total",
        "gpu_throttled",
        "gpu_ecc_corrected_total",
        "gpu_power_watts",
        "gpu_temperature_celsius",
        "gpu_utilization_percent",
        "gpu_nvlink_bytes_total",
    ):
        assert not samples(readings, metric), metric
        assert {each.reason for each in absences(readings, metric)} <= {NO_NUMBER, NOT_REPORTED}


@pytest.mark.spec("SRC-2", "SRC-4")
def test_a_driver_that_hangs_stops_neither_the_look_nor_the_agent() -> None:
    freed = threading.Event()
    clock = ManualClock()
    binding = _binding(lambda _: freed.wait(20))
    probe = NvidiaProbe(lambda _: (0,), clock, nvml=Nvml(clock, load=lambda: binding), held_s=0.01)

    async def look() -> Sequence[MetricReading]:
        registry = Registry([probe], clock, patience_s=0.05)
        try:
            return (await registry.read([job()]))[job().identity]
        finally:
            registry.close()

    try:
        readings = asyncio.run(look())
        assert {each.metric for each in absences(readings)} == probe.metrics
        assert len(absences(readings)) == len(readings)
        assert probe.condition().failure == "NVML has not answered for a while"
    finally:
        freed.set()


class _Refused(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


def _binding(answer: Callable[[str], Any]) -> Any:
    """A binding all of whose calls are answered by one function."""

    class Binding:
        NVMLError = _Refused
        nvmlMemory_v2 = 2  # noqa: N815 - NVIDIA's name
        nvmlEventTypeXidCriticalError = 8  # noqa: N815

        def nvmlInit(self) -> None:  # noqa: N802
            return

        def nvmlErrorString(self, code: int) -> str:  # noqa: N802
            return f"code {code}"

        def __getattr__(self, name: str) -> Callable[..., Any]:
            return lambda *_: answer(name)

    return Binding()


NO_NUMBERS = st.one_of(
    st.none(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.booleans(),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), -1, -0.5, 10**30, -(10**30)]),
    st.sampled_from([0xFFFF_FFFF, 2**64 - 1, 0x7FFF_FFF0, 0x7FFF_FFFF_FFFF_FFF2, 2.0**47, 1.4e30]),
    st.builds(object),
)
REFUSALS = st.sampled_from([1, 2, 3, 4, 6, 9, 10, 13, 15, 16, 18, 21, 999, -7])


@pytest.mark.spec("SRC-2")
@given(data=st.data())
def test_whatever_the_binding_does_no_number_comes_out(data: st.DataObject) -> None:
    identity = {
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetName": "A100",
        "nvmlDeviceGetMinorNumber": 0,
        "nvmlDeviceGetHandleByIndex": object(),
    }

    def answer(name: str) -> Any:
        if name in identity and data.draw(st.integers(0, 9)):
            return identity[name]
        if data.draw(st.booleans()):
            raise _Refused(data.draw(REFUSALS))
        if name == "nvmlDeviceGetUtilizationRates":
            return SimpleNamespace(gpu=data.draw(NO_NUMBERS))
        if name == "nvmlDeviceGetMemoryInfo":
            return SimpleNamespace(used=data.draw(NO_NUMBERS), total=data.draw(NO_NUMBERS))
        if name == "nvmlEventSetWait":
            return SimpleNamespace(device=object(), eventData=data.draw(NO_NUMBERS))
        if name == "nvmlDeviceGetFieldValues":
            value = SimpleNamespace(ullVal=data.draw(st.sampled_from([2**64 - 1, 2**47])))
            return [SimpleNamespace(valueType=3, nvmlReturn=0, value=value)]
        return data.draw(NO_NUMBERS)

    clock = ManualClock()
    binding = _binding(answer)
    probe = NvidiaProbe(lambda _: (0,), clock, nvml=Nvml(clock, load=lambda: binding))
    try:
        readings = probe.read([job()])[job().identity]
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
        return  # an absence, as the registry makes of everything that is raised
    assert not [each for each in readings if isinstance(each, Sample)]
    assert {each.metric for each in absences(readings)} == probe.metrics
