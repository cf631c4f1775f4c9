"""Captures of machines and their comparison: files of others, missing figures, intervals."""

from __future__ import annotations

import json
import os
import random
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lattice.cli.main import main
from lattice.domain.machine_facts import FACTS, MachineFact, fact_lines, fact_value, read_facts
from lattice.domain.statistics.sureness import Sureness
from lattice.features.bench.command import runner as runner_module
from lattice.features.bench.command.runner import CpuPressure, Runner
from lattice.features.bench.model import (
    BadCapture,
    Capture,
    Measured,
    compared_captures,
    document_of,
    read_capture,
)

NOW = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)


def capture(name: str, scale: float = 1.0, **changes: Any) -> Capture:
    noise = random.Random(7)
    samples = tuple(scale * 1e9 * noise.uniform(0.99, 1.01) for _ in range(12))
    facts = (
        MachineFact(name="uptime_seconds", number=scale),
        MachineFact(name="vcpus", number=8),
        MachineFact(name="kernel", text="6.1"),
    )
    measures = (
        Measured(name="memory_copy", samples=samples),
        Measured(name="fio_read", reason="fio is not installed"),
    )
    found = Capture(name=name, time=NOW, version="1", facts=facts, measures=measures)
    return replace(found, **changes)


def raw(found: Capture) -> bytes:
    return json.dumps(document_of(found)).encode()


@pytest.mark.spec("SLICE-3")
def test_a_difference_has_an_interval_and_a_word_for_its_certainty() -> None:
    (copy, fio) = compared_captures(capture("host"), capture("guest", 0.9)).measures
    assert copy.percent == pytest.approx(-10.0, abs=1.0)
    assert copy.percent_low is not None
    assert copy.percent_high is not None
    assert copy.percent_low < copy.percent < copy.percent_high < 0
    assert (copy.sureness, copy.samples) == (Sureness.SURE, (12, 12))
    assert (fio.a, fio.percent, fio.reason) == (None, None, "A: fio is not installed")


def test_equal_machines_do_not_differ() -> None:
    found = compared_captures(capture("host"), capture("guest"))
    assert found.measures[0].sureness is Sureness.NONE_FOUND
    assert found.facts == ()


def test_few_samples_give_no_interval() -> None:
    few = capture("few", measures=(Measured(name="memory_copy", samples=(1.0,) * 7),))
    (row,) = compared_captures(few, few).measures
    assert row.a == 1.0
    assert row.percent is None
    assert row.reason.startswith("A: 7 samples are too few")


def test_facts_that_differ_are_named_and_missing_ones_have_a_reason() -> None:
    guest = capture("guest", facts=(MachineFact(name="vcpus", number=4),
                                    MachineFact(name="kernel", reason="no file")))  # fmt: skip
    found = {each.name: each for each in compared_captures(capture("host"), guest).facts}
    assert (found["vcpus"].a, found["vcpus"].b) == ("8", "4")
    assert (found["kernel"].b, found["kernel"].b_reason) == ("", "no file")
    assert "uptime_seconds" not in found


def test_a_busy_machine_and_another_tool_are_noted() -> None:
    busy = capture("b", facts=(MachineFact(name="waited_percent", number=63.0),))
    read = (Measured(name="disk_read", samples=(1.0,) * 8, tool="O_DIRECT"),)
    notes = compared_captures(
        capture("a", measures=read), replace(busy, measures=(replace(read[0], tool="cache"),))
    ).notes
    assert notes == (
        "B was captured on a busy machine: for 63 % of the time a process waited for a processor",
        "reading from disk was measured by O_DIRECT in A and by cache in B",
    )


def test_a_file_reads_back() -> None:
    assert read_capture(raw(capture("host"))) == capture("host")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "other"}, "no file of"),
        ({"version": 2}, "another version"),
        ({"measures": []}, "no measures"),
        ({"measures": {"memory_copy": {"samples": ["1"]}}}, "can't be right"),
        ({"measures": {"memory_copy": {"samples": [True]}}}, "can't be right"),
        ({"measures": {"memory_copy": {"samples": [0]}}}, "can't be right"),
        ({"measures": {"memory_copy": {"samples": [1] * 1001}}}, "longer one"),
        ({"measures": {"memory_copy": 1}}, "no object"),
        ({"facts": []}, "no object of facts"),
        ({"facts": {"vcpus": {"value": "8"}}}, "no number"),
        ({"facts": {"kernel": {"value": 6}}}, "no text"),
        ({"time": "noon"}, "time is not valid"),
        ({"name": None}, "text is missing"),
    ],
)
def test_a_file_that_is_no_capture_is_refused(change: dict[str, Any], reason: str) -> None:
    document = document_of(capture("host")) | change
    with pytest.raises(BadCapture, match=reason):
        read_capture(json.dumps(document).encode())


def test_text_of_a_file_moves_no_cursor() -> None:
    document = document_of(capture("host")) | {"name": "\x1b[2Jx"}
    assert read_capture(json.dumps(document).encode()).name.isprintable()


@pytest.mark.spec("SLICE-3")
def test_a_capture_and_its_comparison_need_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("COPIED_BYTES", "HASHED_BYTES", "SENT_BYTES"):
        monkeypatch.setattr(runner_module.measures, name, 1 << 20)
    monkeypatch.setattr(runner_module.measures, "send_rate", lambda _: 1e9)
    monkeypatch.setattr(runner_module.measures, "answer_rate", lambda _: None)
    monkeypatch.setattr(runner_module, "DISK_BYTES", 1 << 20)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "capture", "--name", "host", "--repeat", "8", "--no-tools"]) == 0
    (file,) = (tmp_path / "dist" / "benchmarks").iterdir()
    document = json.loads(file.read_text())
    assert document["facts"].keys() <= FACTS.keys()
    assert {"hugepages", "driver_settings", "network", "machine_kind"} <= document["facts"].keys()
    for name, each in document["measures"].items():
        assert len(each.get("samples", ())) == 8 or each["reason"], name
    assert document["measures"]["fio_read"]["reason"] == "not wanted: --no-tools"
    capsys.readouterr()
    assert main(["bench", "compare", str(file), str(file), "-o", "json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert {each["sureness"] for each in compared["measures"]} <= {"none found", "unknown"}
    assert main(["bench", "compare", str(file), "/nowhere.json"]) == 2
    assert "Can't read" in capsys.readouterr().err


def installed(folder: Path, name: str, script: str) -> None:
    tool = folder / name
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


_IB = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1234567          0.00               196.52             0.374832
"""


@pytest.mark.spec("SLICE-3")
def test_fio_only_reads_and_ib_write_bw_is_run_where_there_is_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.setattr(runner_module, "_RDMA", tmp_path / "rdma")
    runner = Runner(str(tmp_path), rdma_peer="n2")
    for measure, reason in ((lambda: runner._fio("fio_read", "f"), "fio is not installed"),
                            (runner._rdma_write, "ib_write_bw is not installed")):  # fmt: skip
        with pytest.raises(runner_module.measures.NotPossible, match=reason):
            measure()
    answer = json.dumps({"jobs": [{"read": {"iops": 5e4, "bw_bytes": 2e8}}]})
    installed(tmp_path, "fio", f"echo \"$@\" > {tmp_path}/asked; echo 'fio: note'; echo '{answer}'")
    assert runner._fio("fio_read", "/a/file")[0] == 2e8
    assert runner._fio("fio_random_read", "/a/file")[0] == 5e4
    assert "--readonly" in (tmp_path / "asked").read_text()
    installed(tmp_path, "fio", "echo 'fio: engine libaio not loadable' >&2; exit 1")
    with pytest.raises(runner_module.measures.NotPossible, match="libaio not loadable"):
        runner._fio("fio_read", "/a/file")
    installed(tmp_path, "ib_write_bw", f"cat <<'END'\n{_IB}END")
    with pytest.raises(runner_module.measures.NotPossible, match="no RDMA device"):
        runner._rdma_write()
    (tmp_path / "rdma" / "mlx5_0").mkdir(parents=True)
    assert runner._rdma_write() == pytest.approx(196.52e9 / 8)


def test_pressure_that_the_kernel_does_not_count_is_a_reason(tmp_path: Path) -> None:
    assert "reason" in CpuPressure(tmp_path / "none").waited()
    file = tmp_path / "cpu"
    file.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n")
    assert CpuPressure(file).waited() == {"value": 0.0}


def test_facts_as_text() -> None:
    facts = read_facts(
        {
            "memory_bytes": {"value": 2**34},
            "boot_seconds": {"value": 12.34},
            "gpu_count": {"reason": "no driver"},
            "unknown": {"value": 1},
        }
    )
    assert fact_lines(facts) == [
        ("boot took", "12.3 s"),
        ("memory", "16 GiB"),
        ("not known", "GPUs (no driver)"),
    ]
    assert fact_value(MachineFact(name="gpu_count", reason="x")) == ""
