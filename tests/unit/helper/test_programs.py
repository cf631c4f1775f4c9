"""Where the helper finds programs: in the folders it was told, in their order."""

from __future__ import annotations

from pathlib import Path

from lattice.helper.programs import find_program


def put(file: Path, mode: int) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(mode)
    return file


def test_the_first_that_can_be_run_is_taken(tmp_path: Path) -> None:
    put(tmp_path / "text/sbatch", 0o644)
    (tmp_path / "folder/sbatch").mkdir(parents=True)
    first = put(tmp_path / "first/sbatch", 0o755)
    put(tmp_path / "second/sbatch", 0o755)
    folders = ":".join(
        str(tmp_path / each) for each in ("gone", "text", "folder", "first", "second")
    )
    assert find_program("sbatch", folders) == first


def test_what_is_nowhere_is_not_found(tmp_path: Path) -> None:
    assert find_program("sbatch", f"{tmp_path}:/nowhere") is None
