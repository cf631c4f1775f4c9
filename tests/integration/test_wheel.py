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
    assert {"server", "agent", "nvidia", "tui", "keyring"} <= {*found.get_all("Provides-Extra")}


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
