"""Daemons whose parts are not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lattice.base.daemon import start


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "some_daemon", raising=False)
    return tmp_path / "some_daemon.py"


@pytest.mark.spec("OPS-9")
def test_a_missing_package_is_named_with_what_to_install(
    module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module.write_text("import not_there.at_all\n")
    assert start("some_daemon", "lattice-server", "server") == 78
    assert capsys.readouterr().err == (
        "lattice-server can't start: the Python package not_there is not installed.\n"
        "Hint: pip install 'lattice-hpc[server]'\n"
    )


def test_a_missing_part_of_lattice_is_a_defect(module: Path) -> None:
    module.write_text("import lattice.not_there\n")
    with pytest.raises(ModuleNotFoundError):
        start("some_daemon", "lattice-server", "server")


def test_the_exit_code_is_passed_on(module: Path) -> None:
    module.write_text("def main():\n    return 7\n")
    assert start("some_daemon", "lattice-server", "server") == 7
