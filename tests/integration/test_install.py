"""What people install: small, and without the two packages that other environments pin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LARGEST_BYTES = 11_000_000
"""As the wheels bring it. The bytecode that pip compiles from it takes about as much again."""


@pytest.mark.spec("CLI-3")
@pytest.mark.timeout(300)
def test_command_line_and_sdk_are_small_and_free_of_grpc(tmp_path: Path) -> None:
    target = tmp_path / "installed"
    wheel = tmp_path / "wheel"
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheel), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (file,) = wheel.iterdir()
    subprocess.run(
        [*pip, "install", "--no-compile", "--target", str(target), str(file)],
        check=True,
        capture_output=True,
    )
    size = sum(each.stat().st_size for each in target.rglob("*") if each.is_file())
    assert size <= LARGEST_BYTES, f"{size / 1e6:.1f} MB"
    assert not (target / "grpc").exists()
    assert not (target / "google").exists()
    run = "import sys; from lattice.cli.main import main; sys.argv = ['lattice', '--help']; main()"
    said = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = [{str(target)!r}]; {run}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Usage: lattice" in said.stdout, said
