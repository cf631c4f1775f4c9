"""Nodes without GPUs, with either maker's cards, with a broken driver, and slices: one form."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lab.amd_gpus import DRIVER_NOT_LOADED, STATE, AmdState, amd_uuid_of, build_amd_library
from lattice.domain.guest_report import ExpectedCards, HostSide, checked, read_report, readings_of
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, MetricReading, Provenance, Sample, labelled
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.features.top.model import TopMode
from lattice.features.top.service.figures import figures_of
from lattice.features.top.service.rows import Known, rows_of
from lattice.probes.amd import AmdProbe
from lattice.probes.amd_command import AmdCommandDriver
from lattice.probes.amd_program import AmdCommandFailed
from lattice.probes.amdsmi import NOT_INSTALLED, AmdSmi
from lattice.probes.nvidia import NvidiaProbe
from lattice.probes.nvidia_card import CARD_METRICS
from lattice.probes.nvml import Nvml
from lattice.probes.probe import ProbeFailed
from tests.fakes.manual_clock import RECORDED, ManualClock

AMD_ANSWERS = Path(__file__).parents[3] / "fixtures" / "amdsmi" / "10.1"
TIME = RECORDED.timestamp()
JOB = NodeJob(identity=JobIdentity("b", 1, 1, TIME), started_by=StartSign.FOLDER)
GUEST = {
    "version": 1,
    "boot_id": "00000000-0000-0000-0000-000000000001",
    "gpu": {"cards": [{"uuid": "GPU-1", "figures": {"gpu_utilization_percent": 41}}]},
    "figures": {"cpu_cores": 8},
}


def without_gpus() -> Sequence[MetricReading]:
    probe = NvidiaProbe(lambda _: (), ManualClock())
    return probe.read([JOB])[JOB.identity]


def without_driver() -> Sequence[MetricReading]:
    def missing() -> Any:
        raise ImportError

    clock = ManualClock()
    probe = NvidiaProbe(lambda _: (0,), clock, nvml=Nvml(clock, load=missing))
    return probe.read([JOB])[JOB.identity]


def nvidia() -> Sequence[MetricReading]:
    labels = labelled(gpu_uuid="GPU-1")
    rest = CARD_METRICS - {"gpu_utilization_percent"}
    return [
        Sample("gpu_utilization_percent", 41.0, TIME, labels=labels),
        *(Absence(each, "this card does not tell it", "", labels) for each in sorted(rest)),
    ]


def in_slice() -> Sequence[MetricReading]:
    report = read_report(json.dumps(GUEST).encode())
    return readings_of([checked(report, HostSide(boot_id="h"), ExpectedCards())], TIME).readings


def silent_slice() -> Sequence[MetricReading]:
    host = HostSide(boot_id=str(GUEST["boot_id"]))
    report = read_report(json.dumps(GUEST).encode())
    return readings_of([checked(report, host, ExpectedCards())], TIME).readings


def amd(folder: Path, monkeypatch: pytest.MonkeyPatch, **state: int) -> Sequence[MetricReading]:
    folder.mkdir()
    library, file = build_amd_library(folder), AmdState(folder / "state")
    file.set(**state)
    monkeypatch.setenv(STATE, str(file.file))
    clock = ManualClock()
    smi = AmdSmi(clock, load=lambda: ctypes.CDLL(str(library)), driver=folder)
    probe = AmdProbe(lambda _: (0,), clock, devices=(amd_uuid_of(0),), library=smi)
    return probe.read([JOB])[JOB.identity]


def amd_by_command(*, broken: bool) -> Sequence[MetricReading]:
    def load() -> Any:
        raise ProbeFailed(NOT_INSTALLED)

    def run(program: str, *words: str) -> bytes:
        if broken:
            raise AmdCommandFailed(f"{program} {words[0]} took longer than 10 s")
        return (AMD_ANSWERS / f"{words[0]}.json").read_bytes()

    clock, devices = ManualClock(), (amd_uuid_of(0),)
    command = AmdCommandDriver(clock, devices, find=lambda: "amd-smi", run=run)
    library = AmdSmi(clock, load=load, driver=AMD_ANSWERS)
    probe = AmdProbe(lambda _: (0,), clock, library=library, command=command)
    return probe.read([JOB])[JOB.identity]


def shape(value: Any) -> Any:
    """Names and kinds, without values."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return "list" if isinstance(value, list | tuple) else ""


def rows(readings: Sequence[MetricReading], mode: TopMode) -> list[dict[str, Any]]:
    snapshot = JobSnapshot(JOB.identity, TIME, 10.0, tuple(readings))
    figures, missing = figures_of(mode, [NodeSnapshot(node="n1", before=None, now=snapshot)])
    known = Known(figures=figures, nodes=("n1",), now=TIME, missing=missing, has_gpus=True)
    return [asdict(each) for each in rows_of(mode, known)]


@pytest.mark.spec("SRC-4")
@pytest.mark.parametrize("mode", [TopMode.PER_NODE, TopMode.PER_GPU, TopMode.WIDE])
def test_every_kind_of_node_gives_the_same_form(
    mode: TopMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: dict[str, Callable[[], Sequence[MetricReading]]] = {
        "without GPUs": without_gpus,
        "without driver": without_driver,
        "nvidia": nvidia,
        "slice": in_slice,
        "silent slice": silent_slice,
        "amd by command": lambda: amd_by_command(broken=False),
        "broken amd by command": lambda: amd_by_command(broken=True),
    }
    if shutil.which("cc"):
        kinds["amd"] = lambda: amd(tmp_path / "amd", monkeypatch)
        kinds["newer amd"] = lambda: amd(tmp_path / "newer", monkeypatch, release=28)
        kinds["broken amd"] = lambda: amd(tmp_path / "broken", monkeypatch, init=DRIVER_NOT_LOADED)
    forms = {}
    for kind, read in kinds.items():
        found = rows(read(), mode)
        cells = [cell for row in found for cell in row["cells"]]
        for cell in cells:
            assert (cell["value"] is None) == bool(cell["reason"]), (kind, cell)
            unavailable = cell["source"] is Provenance.UNAVAILABLE
            assert (cell["value"] is None) == unavailable, (kind, cell)
        forms[kind] = (
            [shape(each) for each in found],
            [[cell["metric"] for cell in row["cells"]] for row in found],
            [shape(each) for each in cells],
        )
    assert all(form == forms["nvidia"] for form in forms.values()), forms.keys()
