"""Which tests `just quick` chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import quick
from scripts.quick import chosen_tests, imported, importers, module_name


def test_a_module_is_named_by_its_path() -> None:
    assert module_name(Path("/r/src/lattice/base/text.py"), Path("/r/src")) == "lattice.base.text"
    assert module_name(Path("/r/src/lattice/__init__.py"), Path("/r/src")) == "lattice"


def test_imports_are_found_wherever_they_stand() -> None:
    source = "import a.b\nfrom c import d\ndef f():\n    from e.f import (g, h)\n"
    assert imported(source) == {"a.b", "c", "c.d", "e.f", "e.f.g", "e.f.h"}


def test_whoever_imports_a_change_is_found_at_any_distance() -> None:
    imports = {"test": {"middle"}, "middle": {"low"}, "low": set(), "other": {"else"}}
    assert importers(imports, ["low"]) == {"low", "middle", "test"}


def test_a_changed_source_brings_its_tests_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "changed_files", lambda _: {"src/lattice/domain/nodeset.py"})
    found = chosen_tests("HEAD")
    assert "tests/unit/domain/test_nodeset.py" in found
    assert "tests/unit/domain/test_latency.py" not in found
    assert not any(path.startswith("tests/e2e/") for path in found)


def test_a_document_brings_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "changed_files", lambda _: {"README.md"})
    assert chosen_tests("HEAD") == []
