"""AMD's cards by the command `amd-smi`: the same readings as by the library, and what bounds it.

The answers in `tests/fixtures/amdsmi` are those of real releases of the command, which ran on the
same test library: the README there says how.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lab.amd_gpus import STATE, AmdState, amd_uuid_of, build_amd_library
from lattice.domain.measured import FIRST_READING
from lattice.domain.metric import Absence, MetricReading, Sample
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.probes import amdsmi
from lattice.probes.amd import AmdProbe
from lattice.probes.amd_card import AMD_METRICS
from lattice.probes.amd_command import (
    BROKEN,
    EVERY_S,
    NAMES_EVERY_S,
    AmdCommandDriver,
)
from lattice.probes.amd_program import MOST_BYTES, AmdCommandFailed, run_program
from lattice.probes.amdsmi import AmdSmi
from lattice.probes.probe import ProbeFailed
from tests.eventually import eventually
from tests.fakes.manual_clock import RECORDED, ManualClock

FIXTURES = Path(__file__).parents[2] / "fixtures" / "amdsmi"
TIME = RECORDED.timestamp()
JOB = NodeJob(identity=JobIdentity("b", 1, 1, TIME), started_by=StartSign.FOLDER)
BOTH = (amd_uuid_of(0), amd_uuid_of(1))
HARDWARE = {
    "utilization": 12,
    "temperature": 61,
    "power": 120,
    "memory_used": 3 * 2**30,
    "ecc_corrected": 3,
    "ecc_uncorrected": 1,
    "pcie_replays": 5,
    "energy": 2_000_000,
    "clock": 1900,
}
"""The second card of the answers; the first is as `AmdState` begins."""


class Recorded:
    """The command of one release, by its recorded answers; what is changed is changed."""

    def __init__(self, release: str) -> None:
        folder = FIXTURES / release
        self.answers = {each.stem: each.read_bytes() for each in folder.glob("*.json")}
        self.knows = {"--energy", *({"--throttle"} if release == "10.1" else ())}
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, program: str, *words: str) -> bytes:
        assert program == "amd-smi"
        self.asked.append(words)
        if {"--energy", "--throttle"}.intersection(words) - self.knows:
            return b'{"error": "Parameter \'--throttle\' is invalid.", "code": -2}'
        return self.answers[words[0]]

    def change(self, name: str, old: str, new: str) -> None:
        before = self.answers[name]
        self.answers[name] = before.replace(old.encode(), new.encode())
        assert self.answers[name] != before

    def count(self, name: str) -> int:
        return sum(each[0] == name for each in self.asked)


def command(
    run: Callable[..., bytes], clock: ManualClock, folder: Path, program: str | None = "amd-smi"
) -> AmdCommandDriver:
    return AmdCommandDriver(clock, devices=BOTH, sys=folder, find=lambda: program, run=run)


def readings(driver: AmdCommandDriver, card: int = 1) -> list[MetricReading]:
    return driver.read(driver.scan()[card])


def values(found: Sequence[MetricReading]) -> dict[tuple[str, str], float]:
    return {
        (each.metric, each.label("reason") or each.label("link") + each.label("kind")): each.value
        for each in found
        if isinstance(each, Sample)
    }


def by_library(folder: Path, monkeypatch: pytest.MonkeyPatch, release: int) -> AmdProbe:
    library, state = build_amd_library(folder), AmdState(folder / "state")
    state.set(release=release)
    state.card(1, **HARDWARE)
    monkeypatch.setenv(STATE, str(state.file))
    clock = ManualClock()
    smi = AmdSmi(clock, load=lambda: ctypes.CDLL(str(library)), driver=folder)
    return AmdProbe(lambda _: (1,), clock, devices=BOTH, library=smi, sys=folder)


@pytest.mark.spec("TOP-2", "SRC-4")
@pytest.mark.skipif(shutil.which("cc") is None, reason="the library is compiled")
@pytest.mark.parametrize(
    ("release", "printed_by", "by_library_alone"),
    [
        (24, "6.1.2", {"gpu_xgmi_bytes_total", "gpu_link_errors_total"}),
        (27, "10.1", {"gpu_link_errors_total"}),
    ],
)
def test_the_command_gives_the_same_readings_as_the_library(
    release: int,
    printed_by: str,
    by_library_alone: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = by_library(tmp_path, monkeypatch, release)
    asked = AmdProbe(
        lambda _: (1,), ManualClock(), library=_missing(),
        command=command(Recorded(printed_by), ManualClock(), tmp_path),
    )  # fmt: skip
    expected, found = (each.read([JOB])[JOB.identity] for each in (probe, asked))
    assert values(found) == {
        name: pytest.approx(value, rel=1e-6)
        for name, value in values(expected).items()
        if name in values(found)
    }
    lacking = values(expected).keys() - values(found).keys()
    assert {metric for metric, _ in lacking} == by_library_alone
    assert {each.metric for each in found} == {each.metric for each in expected} == AMD_METRICS
    # The cards are the same, too, and so is what is wrong with them.
    for card, other in zip(asked.condition().cards, probe.condition().cards, strict=True):
        assert (card.uuid, card.name, card.ecc_uncorrected) == (
            other.uuid,
            other.name,
            other.ecc_uncorrected,
        )
    assert asked.uuids_of(1) == probe.uuids_of(1) == (amd_uuid_of(1),)


def _missing() -> AmdSmi:
    def load() -> object:
        raise ProbeFailed(amdsmi.NOT_INSTALLED, "libamd_smi.so: no such file")

    return AmdSmi(ManualClock(), load=load, driver=Path("/"))


@pytest.mark.spec("SRC-4", "OPS-9")
def test_without_library_and_command_the_node_says_what_is_missing(tmp_path: Path) -> None:
    none = command(Recorded("10.1"), ManualClock(), tmp_path, program=None)
    probe = AmdProbe(lambda _: (0,), ManualClock(), library=_missing(), command=none)
    found = probe.read([JOB])[JOB.identity]
    assert {(each.reason, each.last_error) for each in found if isinstance(each, Absence)} == {
        (amdsmi.NOT_INSTALLED, "libamd_smi.so: no such file")
    }
    assert probe.condition().nothing == amdsmi.NOT_INSTALLED


@pytest.mark.spec("SRC-2", "SRC-4")
def test_throttling_needs_two_runs_and_is_of_the_time_between(tmp_path: Path) -> None:
    clock, smi = ManualClock(), Recorded("10.1")
    driver = command(smi, clock, tmp_path)
    first = readings(driver)
    reasons = [each.reason for each in first if isinstance(each, Absence)]
    assert FIRST_READING in reasons
    driver.condition(driver.scan()[1])
    smi.change("metric", '"accumulation_counter": 1000', '"accumulation_counter": 2000')
    smi.change("metric", '"hbm_thermal_accumulated": 0', '"hbm_thermal_accumulated": 250')
    clock.advance(EVERY_S)
    causes = {name: value for (metric, name), value in values(readings(driver)).items()
              if metric == "gpu_throttled"}  # fmt: skip
    assert {name for name, value in causes.items() if value} == {"memory_thermal"}
    assert len(causes) == 5
    assert driver.condition(driver.scan()[1]).throttled == ("memory_thermal",)


@pytest.mark.spec("SRC-2")
def test_it_runs_once_a_minute_and_says_when(tmp_path: Path) -> None:
    clock, smi = ManualClock(), Recorded("10.1")
    driver = command(smi, clock, tmp_path)
    begun = clock.now().timestamp()
    for _ in range(6):
        found = readings(driver)
        assert {each.time for each in found if isinstance(each, Sample)} == {begun}
        clock.advance(EVERY_S / 6)
    assert smi.count("metric") == 1
    readings(driver)
    assert (smi.count("metric"), smi.count("xgmi"), smi.count("list")) == (2, 2, 1)
    clock.advance(NAMES_EVERY_S)
    readings(driver)
    assert (smi.count("metric"), smi.count("list"), smi.count("static")) == (3, 2, 2)
    # Without options it would read the error status of XGMI, and clear it.
    assert all(len(words) > 1 for words in smi.asked if words[0] != "list")
    assert not any("--xgmi-err" in words for words in smi.asked)


def test_options_that_a_release_does_not_know_are_tried_once(tmp_path: Path) -> None:
    clock, smi = ManualClock(), Recorded("6.1.2")
    driver = command(smi, clock, tmp_path)
    assert values(readings(driver))["gpu_energy_joules_total", ""] == pytest.approx(30.6)
    clock.advance(EVERY_S)
    readings(driver)
    assert [words[-1] for words in smi.asked if words[0] == "metric"] == [
        "--throttle",
        "--energy",
        "--energy",
    ]


@pytest.mark.spec("SRC-2", "SRC-4")
def test_a_card_that_is_no_longer_listed_is_lost(tmp_path: Path) -> None:
    clock, smi = ManualClock(), Recorded("10.1")
    driver = command(smi, clock, tmp_path)
    readings(driver)
    smi.answers["metric"] = json.dumps(
        {"gpu_data": json.loads(smi.answers["metric"])["gpu_data"][:1]}
    ).encode()
    smi.answers["list"] = json.dumps(json.loads(smi.answers["list"])[:1]).encode()
    clock.advance(EVERY_S)
    assert values(readings(driver)) == {}
    assert driver.condition(driver.scan()[1]).lost == "it is not listed any more"


@pytest.mark.spec("SRC-4")
def test_a_failure_is_told_in_the_commands_own_text_and_not_tried_at_once(tmp_path: Path) -> None:
    clock, smi = ManualClock(), Recorded("10.1")
    good = smi.answers["metric"]
    smi.answers["metric"] = b'{"error": "AMDSMI has returned error \'-1002\'", "code": -1002}'
    driver = command(smi, clock, tmp_path)
    for _ in range(3):
        with pytest.raises(ProbeFailed) as failed:
            driver.scan()
        assert (failed.value.reason, failed.value.last_error) == (
            BROKEN,
            "AMDSMI has returned error '-1002'",
        )
    assert smi.count("metric") == 3, "once with each set of options"
    smi.answers["metric"] = good
    clock.advance(EVERY_S)
    assert values(readings(driver))


def test_a_node_without_cards_says_so(tmp_path: Path) -> None:
    smi, clock = Recorded("10.1"), ManualClock()
    smi.answers |= {"list": b"[]", "metric": b"[]"}
    with pytest.raises(ProbeFailed, match=amdsmi.NO_CARDS):
        command(smi, clock, tmp_path).scan()


def script(folder: Path, text: str) -> str:
    file = folder / "amd-smi"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(stat.S_IRWXU)
    return str(file)


def test_a_program_is_run_without_the_environment_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATTICE_SECRET", "x")
    printed = run_program(script(tmp_path, 'echo "$@"; env; exit 3'), "list").decode()
    assert printed.startswith("list --json\n")
    assert "LATTICE_SECRET" not in printed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sleep 1000 & echo $! >child; wait", "took longer than 0.3 s"),
        ("while :; do echo 0123456789abcdef; done", f"printed more than {MOST_BYTES} bytes"),
    ],
)
def test_a_program_that_hangs_or_floods_is_killed_with_its_children(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    timeout_s = 0.3 if "sleep" in text else 60.0
    with pytest.raises(AmdCommandFailed, match=why):
        run_program(script(tmp_path, text), "metric", timeout_s=timeout_s)
    child = tmp_path / "child"
    if child.exists():
        stopped = Path(f"/proc/{child.read_text().strip()}/stat")
        # It ends by the signal as soon as it gets a processor.
        eventually(lambda: not stopped.exists() or stopped.read_text().split()[2] in "ZX")


def test_a_program_that_is_not_there_has_the_systems_reason(tmp_path: Path) -> None:
    with pytest.raises(AmdCommandFailed, match=os.strerror(2)):
        run_program(str(tmp_path / "none"), "list")
