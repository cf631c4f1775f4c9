"""The wheel and the source archive: whole, and the same whichever of them is built from."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ("config", "infra/systemd", "infra/grafana", "infra/alerts")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", out], cwd=ROOT, check=True)
    return out


def test_the_wheel_has_samples_units_and_dashboards(built: Path) -> None:
    (file,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(file).namelist())
    for folder in SHARED:
        for each in (ROOT / folder).iterdir():
            assert f"lattice/share/{Path(folder).name}/{each.name}" in names


def test_the_metadata_is_complete(built: Path) -> None:
    (file,) = built.glob("*.whl")
    wheel = zipfile.ZipFile(file)
    (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
    found = message_from_string(wheel.read(name).decode())
    for key in ("Summary", "Author", "Keywords", "License-Expression", "Requires-Python"):
        assert found[key], key
    assert {"server", "agent", "nvidia", "tui", "keyring", "otel", "mlflow"} <= {
        *found.get_all("Provides-Extra")
    }


def test_the_source_archive_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    out = tmp_path / "out"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out]
    subprocess.run(build, cwd=source, check=True)
    (first,), (second,) = built.glob("*.whl"), out.glob("*.whl")
    assert zipfile.ZipFile(first).namelist() == zipfile.ZipFile(second).namelist()


def test_the_wheel_for_trainings_is_small_and_builds_from_its_own_source(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d"]
    subprocess.run([*build, tmp_path], cwd=ROOT / "packages" / "lattice-run", check=True)
    (wheel,), (archive,) = tmp_path.glob("lattice_run-*.whl"), tmp_path.glob("*.tar.gz")
    assert wheel.stat().st_size < 20_000
    with zipfile.ZipFile(wheel) as file:
        (name,) = (each for each in file.namelist() if each.endswith("/entry_points.txt"))
        groups = file.read(name).decode()
    assert "[opentelemetry_resource_detector]" in groups
    assert "[mlflow.run_context_provider]" in groups
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (source,) = (each for each in tmp_path.iterdir() if each.is_dir())
    out = tmp_path / "again"
    subprocess.run([*build, out, "-t", "wheel"], cwd=source, check=True)
    (again,) = out.glob("*.whl")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()
