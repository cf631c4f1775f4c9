"""Small files of the kernel's: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.probes.kernel_files import read_text


@pytest.mark.spec("SRC-2")
def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "cgroup.procs"
    file.write_text("12345\n" * 20_000)
    assert read_text(str(file), 120_000) == "12345\n" * 20_000
    assert read_text(str(file), 119_999) is None, "a part of a list would be counted as the list"


def test_what_is_no_file_is_none(tmp_path: Path) -> None:
    assert read_text(str(tmp_path)) is None
    assert read_text(str(tmp_path / "absent")) is None
    assert read_text("a\0b") is None
