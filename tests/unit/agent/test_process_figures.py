"""What the agent shows of its own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice import __version__
from lattice.agent.process_figures import OwnProcess


@pytest.mark.spec("OPS-8")
def test_the_process_is_shown_with_its_version() -> None:
    found = {each.name: each for each in OwnProcess().figures()}
    assert dict(found["lattice_agent_build_info"].labels)["version"] == __version__
    assert found["lattice_agent_resident_memory_bytes"].value > 1_000_000
    assert found["lattice_agent_open_files"].value >= 3
    assert found["lattice_agent_start_time_seconds"].value > 1_500_000_000


@pytest.mark.spec("OPS-8")
def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/statm").write_text("1\n")
    (tmp_path / "self/stat").write_text("1 (a) b) S 1\n")
    names = [each.name for each in OwnProcess(tmp_path).figures()]
    assert names == ["lattice_agent_build_info"]


def test_a_name_with_brackets_does_not_shift_the_fields(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    fields = " ".join(["S", *(["0"] * 18), "500"])
    (tmp_path / "self/stat").write_text(f"7 (a) (b) {fields} 0\n")
    (tmp_path / "stat").write_text("cpu 1\nbtime 1700000000\n")
    (found,) = [
        each.value for each in OwnProcess(tmp_path).figures() if each.name.endswith("time_seconds")
    ]
    assert found > 1_700_000_000
