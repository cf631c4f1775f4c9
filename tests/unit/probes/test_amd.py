"""The AMD probe on a compiled library with the structures of AMD's header.

The library is called in a fresh process, as an agent calls it: by its name, on the library path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.amd_gpus import (
    DRIVER_NOT_LOADED,
    STATE,
    AmdState,
    amd_uuid_of,
    build_amd_library,
)
from lattice.domain.measured import FIRST_READING
from lattice.domain.metric import CATALOGUE, Per
from lattice.probes import amdsmi
from lattice.probes.amd import AmdProbe
from lattice.probes.amd_card import NOT_READ, OTHER_RELEASE, OTHER_TABLE
from lattice.probes.amd_cards import NO_SUCH_CARD, PARTITIONED, TWICE, AmdCard, chosen
from lattice.probes.card_probe import NO_GPUS
from lattice.probes.node_cards import node_cards
from lattice.probes.nvidia import NOT_LISTED, NvidiaProbe
from lattice.probes.nvidia_card import LOST, NO_NUMBER, NOT_REPORTED
from tests.fakes.manual_clock import ManualClock

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None, reason="the library is compiled, and there is no C compiler"
)
_PROGRAM = """
import json, os, sys
from pathlib import Path
from lattice.base.clock import SystemClock
from lattice.domain.metric import Sample
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.probes.amd import AmdProbe
from lattice.probes.amdsmi import AmdSmi
asked = json.loads(sys.argv[1])
clock = SystemClock()
library = AmdSmi(clock, driver=Path(asked["driver"]))
gpus = tuple(asked["gpus"])
probe = AmdProbe(lambda _: gpus, clock, devices=asked["devices"], library=library,
                 sys=Path(asked["sys"]))
job = NodeJob(identity=JobIdentity("b", 1, 1, 1.7e9), started_by=StartSign.FOLDER)
readings = probe.read([job])[job.identity]
condition = probe.condition()
if asked["later"]:
    with open(os.environ["AMDSMI_STATE"], "a") as state:
        state.write(asked["later"])
    readings = probe.read([job])[job.identity]
    condition = probe.condition()
print(json.dumps({
    "values": [[each.metric, dict(each.labels), each.value]
               for each in readings if isinstance(each, Sample)],
    "absent": [[each.metric, each.reason, each.last_error]
               for each in readings if not isinstance(each, Sample)],
    "uuids": probe.uuids_of(1),
    "nothing": condition.nothing,
    "failure": condition.failure,
    "cards": [[each.uuid, each.name, each.lost, each.ecc_uncorrected] for each in condition.cards],
    "slowed": [list(each.throttled) for each in condition.cards],
    "links": [[each.nvlinks, each.nvlink_bytes_s] for each in condition.cards],
}))
"""
Read = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_amd_library(tmp_path_factory.mktemp("amd"))


@pytest.fixture
def cards(tmp_path: Path) -> AmdState:
    return AmdState(tmp_path / "state")


@pytest.fixture
def read(library: Path, cards: AmdState, tmp_path: Path) -> Read:
    for card in range(2):
        # The first card by amd-smi has the second render device.
        folder = tmp_path / f"bus/pci/devices/0000:{0xC1 - card:02x}:00.0/drm"
        (folder / f"renderD{129 - card}").mkdir(parents=True)
        (folder / f"card{card}").mkdir()

    def result(
        *gpus: int,
        devices: tuple[str, ...] = (),
        driver: str = "/",
        path: Path = library.parent,
        later: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        asked = {
            "gpus": gpus,
            "devices": devices,
            "driver": driver,
            "sys": str(tmp_path),
            "later": "".join(f"gpu * {each}\n" for each in later),
        }
        environment = {**os.environ, "LD_LIBRARY_PATH": str(path), STATE: str(cards.file)}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, json.dumps(asked)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not done.returncode, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return result


def values(found: dict[str, Any]) -> dict[str, float]:
    """By metric, and what tells its series of one card apart."""
    return {
        ".".join((metric, *(labels[each] for each in sorted(labels.keys() - {"gpu_uuid"})))): value
        for metric, labels, value in found["values"]
    }


def slowed(found: dict[str, Any]) -> dict[str, float]:
    """By cause."""
    series = "gpu_throttled."
    known = values(found).items()
    return {name.removeprefix(series): value for name, value in known if name.startswith(series)}


def reason_of(found: dict[str, Any], metric: str) -> str:
    return next(reason for name, reason, _ in found["absent"] if name == metric)


def reasons(found: dict[str, Any]) -> set[tuple[str, str]]:
    return {(reason, error) for _, reason, error in found["absent"]}


@pytest.mark.spec("SRC-4", "TOP-1", "TOP-2")
@pytest.mark.parametrize("release", [24, 25, 26, 27])
def test_a_card_has_the_figures_of_the_catalogue(release: int, read: Read, cards: AmdState) -> None:
    cards.set(release=release)
    cards.card(1, ecc_corrected=3, power=401, pcie_replays=5)
    found = read(0)
    assert values(found) == {
        "gpu_utilization_percent": 73,
        "gpu_memory_used_bytes": 2**30,
        "gpu_memory_total_bytes": 192 * 2**30,
        "gpu_temperature_celsius": 55,
        "gpu_clock_sm_hertz": 2.1e9,
        "gpu_clock_memory_hertz": 1.3e9,
        "gpu_power_watts": 401,
        "gpu_power_limit_watts": 750,
        "gpu_energy_joules_total": pytest.approx(15.3),
        "gpu_ecc_corrected_total": 3,
        "gpu_ecc_uncorrected_total": 0,
        "gpu_link_errors_total.replay.pcie": 5,
        "gpu_link_errors_total.corrected.xgmi": 4,
        "gpu_link_errors_total.uncorrected.xgmi": 0,
        "gpu_xgmi_bytes_total": 8 * 1500 * 1024,
    }
    # Slurm's first device is the render device with the lowest number.
    assert found["uuids"] == [amd_uuid_of(1)]
    throttling = FIRST_READING if release > 24 else NOT_REPORTED
    assert reasons(found) == {(NOT_READ, ""), (throttling, "")}
    metrics = {each[0] for each in (*found["values"], *found["absent"])}
    of_cards = {each.name for each in CATALOGUE.values() if each.per is Per.GPU}
    assert of_cards - metrics == {"gpu_sm_occupancy_percent", "gpu_nvlink_bytes_total"}


@pytest.mark.spec("SRC-4", "DIAG-4")
@pytest.mark.parametrize("release", [25, 26, 27])
def test_a_card_is_slowed_down_if_its_counters_rose_since_the_last_reading(
    release: int, read: Read, cards: AmdState
) -> None:
    cards.set(release=release)
    found = read(0, later=("cycles 2000", "ppt 1400", "hbm 300", "socket 29"))
    # The socket was too hot for 0.9 % of the time.
    assert slowed(found) == {
        "sw_power_cap": 1,
        "memory_thermal": 1,
        "socket_thermal": 0,
        "prochot_thermal": 0,
        "regulator_thermal": 0,
    }
    assert found["slowed"] == [["sw_power_cap", "memory_thermal"]] * 2


@pytest.mark.spec("SRC-2")
def test_counters_that_stand_still_or_begin_again_give_no_value(
    read: Read, cards: AmdState
) -> None:
    assert reason_of(read(0, later=("ppt 1400",)), "gpu_throttled") == FIRST_READING
    assert reason_of(read(0, later=("cycles 10", "ppt 5")), "gpu_throttled") == FIRST_READING
    cards.card("*", prochot="error:2")
    assert slowed(read(0, later=("cycles 2000", "ppt 403"))).keys() == {
        "sw_power_cap",
        "memory_thermal",
        "socket_thermal",
        "regulator_thermal",
    }


@pytest.mark.spec("SRC-4")
@pytest.mark.parametrize("release", [24, 26, 27])
def test_a_card_without_counters_has_bits(release: int, read: Read, cards: AmdState) -> None:
    cards.set(release=release)
    # The memory is too hot (34). The hotspot (36) and a limit of current (16) are left out.
    cards.card("*", cycles="error:2", throttle_bits=1 << 34 | 1 << 36 | 1 << 16)
    assert slowed(read(0)) == {
        "sw_power_cap": 0,
        "memory_thermal": 1,
        "socket_thermal": 0,
        "prochot_thermal": 0,
        "regulator_thermal": 0,
    }
    cards.card("*", throttle_bits=0)
    assert set(slowed(read(0)).values()) == {0}


@pytest.mark.spec("SRC-2")
def test_a_card_that_does_not_report_throttling_is_not_called_fast(
    read: Read, cards: AmdState
) -> None:
    cards.card("*", cycles="error:2")
    found = read(0, later=("utilization 1",))
    assert slowed(found) == {}
    assert reason_of(found, "gpu_throttled") == NOT_REPORTED
    cards.card("*", table="error:2")
    assert reason_of(read(0), "gpu_xgmi_bytes_total") == NOT_REPORTED


@pytest.mark.spec("SRC-2")
def test_the_table_of_an_unknown_release_is_not_guessed(read: Read, cards: AmdState) -> None:
    cards.set(release=28)
    found = read(0)
    assert slowed(found) == {}
    assert {reason_of(found, each) for each in ("gpu_throttled", "gpu_xgmi_bytes_total")} == {
        OTHER_TABLE
    }
    assert found["links"] == [[7, None]] * 2


@pytest.mark.spec("SRC-2", "SRC-4")
def test_the_links_between_cards(read: Read, cards: AmdState) -> None:
    # 16 lanes with 32 Gb/s are 64 GB/s one way.
    assert read(0)["links"] == [[7, 7 * 2 * 64e9]] * 2
    cards.card(0, xgmi_links="XUUUUUUD")
    cards.card(1, xgmi_width="error:2")
    assert read(0)["links"] == [[6, 6 * 2 * 64e9], [7, None]]
    cards.card("*", xgmi_links="error:2", xgmi_read="error:2", xgmi_corrected="error:2")
    found = read(0)
    assert found["links"] == [[None, None]] * 2
    assert reason_of(found, "gpu_xgmi_bytes_total") == NOT_REPORTED
    assert "gpu_link_errors_total.corrected.xgmi" not in values(found)


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("found", ["error:2", str(2**64 - 1)])
def test_replays_that_amd_smi_does_not_count_are_absent(
    read: Read, cards: AmdState, found: str
) -> None:
    cards.card(1, pcie_replays=found)
    told = read(0)
    assert "gpu_link_errors_total.replay.pcie" not in values(told)
    assert "gpu_link_errors_total" in {each[0] for each in told["absent"]}


@pytest.mark.spec("SRC-2")
def test_the_power_of_an_unknown_release_is_not_guessed(read: Read, cards: AmdState) -> None:
    cards.set(release=28)
    found = read(0)
    assert "gpu_power_watts" not in values(found)
    assert (OTHER_RELEASE, "") in reasons(found)


@pytest.mark.spec("SRC-2", "TOP-1")
def test_the_power_of_release_25_is_that_of_the_firmware(read: Read, cards: AmdState) -> None:
    cards.set(release=25)
    cards.card("*", power_now=398)
    assert values(read(0))["gpu_power_watts"] == 398
    cards.card("*", power_now="error:2", power="error:2")
    assert reason_of(read(0), "gpu_power_watts") == NO_NUMBER


@pytest.mark.spec("SRC-2", "SRC-4")
def test_a_figure_that_a_card_does_not_have_is_absent(read: Read, cards: AmdState) -> None:
    cards.card("*", power="error:2", utilization="error:7", energy="error:2")
    found = read(0)
    assert not {"gpu_power_watts", "gpu_utilization_percent"} & values(found).keys()
    text = "AMDSMI_STATUS_NOT_SUPPORTED: Feature not supported"
    assert (NOT_REPORTED, text) in reasons(found)
    assert any(reason == "amd-smi did not answer it" for reason, _ in reasons(found))
    assert values(found)["gpu_temperature_celsius"] == 55


@pytest.mark.spec("SRC-2", "SRC-4")
def test_a_lost_card_has_no_number_and_the_other_has(read: Read, cards: AmdState) -> None:
    cards.card("*", utilization="error:12")
    cards.card(0, utilization=40)
    lost = read(0)
    assert values(lost) == {}
    assert reasons(lost) == {(LOST, "AMDSMI_STATUS_IO: I/O Error")}
    assert values(read(1))["gpu_utilization_percent"] == 40


@pytest.mark.spec("SRC-4")
def test_a_broken_driver_is_named_in_its_own_text(read: Read, cards: AmdState) -> None:
    cards.set(init=DRIVER_NOT_LOADED)
    found = read(0)
    text = (
        "Failed to initialize amd-smi: AMDSMI_STATUS_DRIVER_NOT_LOADED: Processor driver not loaded"
    )
    assert values(found) == {}
    assert reasons(found) == {(amdsmi.BROKEN, text)}
    assert found["failure"] == text


@pytest.mark.spec("SRC-4", "OPS-9")
def test_a_node_without_driver_library_or_card_says_so(
    read: Read, cards: AmdState, tmp_path: Path
) -> None:
    assert {each for each, _ in reasons(read(0, driver="/nowhere"))} == {amdsmi.NO_DRIVER}
    missing = read(0, path=tmp_path)
    assert {each for each, _ in reasons(missing)} == {amdsmi.NOT_INSTALLED}
    assert missing["nothing"] == amdsmi.NOT_INSTALLED
    cards.set(gpus=0)
    assert {each for each, _ in reasons(read(0))} == {amdsmi.NO_CARDS}


def test_a_job_without_gpus_asks_no_driver(read: Read, tmp_path: Path) -> None:
    assert {each for each, _ in reasons(read(path=tmp_path))} == {NO_GPUS}


@pytest.mark.spec("OPS-10")
def test_the_condition_of_cards(read: Read, cards: AmdState) -> None:
    cards.card(0, ecc_uncorrected=2)
    found = read(0)
    assert found["cards"] == [
        [amd_uuid_of(0), "AMD Instinct MI300X", "", 2],
        [amd_uuid_of(1), "AMD Instinct MI300X", "", 0],
    ]


@pytest.mark.spec("SRC-2", "TOP-2")
def test_a_partitioned_card_is_shown_only_where_the_site_names_it(
    read: Read, cards: AmdState
) -> None:
    cards.card("*", compute="CPX", memory_mode="NPS4")
    assert {each for each, _ in reasons(read(0))} == {PARTITIONED}
    found = read(1, devices=(amd_uuid_of(0), amd_uuid_of(1)))
    assert found["uuids"] == [amd_uuid_of(1)]
    assert values(found)["gpu_utilization_percent"] == 73
    assert found["cards"][0][1] == "AMD Instinct MI300X (CPX, NPS4)"


@pytest.mark.spec("SRC-2")
def test_two_cards_with_one_uuid_are_not_shown(read: Read, cards: AmdState) -> None:
    cards.card("*", uuid=amd_uuid_of(0))
    assert {each for each, _ in reasons(read(0))} == {TWICE}


def card(uuid: str, render: int | None, *, partitioned: bool = False) -> AmdCard:
    return AmdCard(handle=1, uuid=uuid, render=render, partitioned=partitioned)


def test_the_card_of_a_number_of_slurm() -> None:
    a, b = card("a", 130), card("b", 128)
    assert chosen(0, (), (a, b)) == b
    assert chosen(1, (), (a, b)) == a
    assert chosen(2, (), (a, b)) == NO_SUCH_CARD
    assert chosen(0, (), (a, card("c", None))) == NO_SUCH_CARD
    assert chosen(0, ("/dev/dri/renderD130",), (a, b)) == a
    assert chosen(0, ("b",), (a, b)) == b
    assert chosen(0, ("c",), (a, b)) == NO_SUCH_CARD
    assert chosen(1, ("b",), (a, b)) == NOT_LISTED


@pytest.mark.spec("OPS-9")
def test_the_driver_that_is_loaded_decides(tmp_path: Path) -> None:
    here, gone = tmp_path, tmp_path / "none"

    def probe(amd: Path, nvidia: Path) -> object:
        return node_cards(lambda _: (), ManualClock(), (), amd_driver=amd, nvidia_driver=nvidia)

    assert isinstance(probe(here, gone), AmdProbe)
    assert isinstance(probe(here, here), NvidiaProbe)
    assert isinstance(probe(gone, gone), NvidiaProbe)
