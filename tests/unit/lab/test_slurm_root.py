"""Which releases of Slurm a lab can have, and where their packages come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import slurm_root as roots
from lab.command import LabError
from lab.shelter import kept_paths


def test_the_machines_own_release_needs_no_root() -> None:
    assert roots.slurm_root(roots.OWN_RELEASE) is None


def test_a_root_is_named_after_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    root = roots.slurm_root("26.05")
    assert root is not None
    before = root.folder
    assert before.name.startswith("26.05-")
    monkeypatch.setattr(roots, "_PACKAGES", ("slurmctld",))
    assert root.folder != before


def test_a_lab_has_the_newest_release_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LATTICE_LAB_SLURM", raising=False)
    assert roots.default_release() == roots.NEWEST_RELEASE == "26.05"
    monkeypatch.setenv("LATTICE_LAB_SLURM", "22.05")
    assert roots.default_release() == "22.05"


def test_a_release_that_is_not_known_is_refused() -> None:
    with pytest.raises(LabError, match=r"22\.05, 24\.11, 26\.05"):
        roots.slurm_root("20.11")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("sources.list.d/debian.sources", "Types: deb\nURIs: http://a.test/debian\nSuites: x\n"),
        ("sources.list", "# none\ndeb [signed-by=/k.gpg] http://a.test/debian x main\n"),
        ("sources.list.d/one.list", "deb http://a.test/debian x main\n"),
    ],
)
def test_packages_come_from_where_the_machine_gets_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / file).write_text(text)
    monkeypatch.setattr(roots, "_SOURCES", tmp_path)
    assert roots.mirror() == "http://a.test/debian"


def test_in_another_root_the_machines_python_is_reachable() -> None:
    root = roots.slurm_root("26.05")
    kept = [Path(each) for each in kept_paths(root)]
    assert all(each.exists() for each in kept)
    assert Path("/usr") not in kept
    checkout = Path(__file__).resolve().parents[3]
    assert any(checkout.is_relative_to(each) for each in kept)
