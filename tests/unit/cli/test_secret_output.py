"""Output that is secret does not become a file that others can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lattice.cli.shell import TerminalShell


def _environment(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "LATTICE_API_URL": "https://lattice.test:8080"}


def test_a_file_is_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "join.key"
    with file.open("w") as out:
        os.fchmod(out.fileno(), 0o644)
        monkeypatch.setattr("sys.stdout", out)
        TerminalShell({}, _environment(tmp_path)).write_secretly()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_pipe_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out, os.fdopen(reader):
        before = os.fstat(writer).st_mode
        monkeypatch.setattr("sys.stdout", out)
        TerminalShell({}, _environment(tmp_path)).write_secretly()
        assert os.fstat(writer).st_mode == before
