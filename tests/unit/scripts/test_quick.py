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


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project: a source, a fake above it, and tests."""
    for name, text in {
        "src/lattice/low.py": "",
        "src/lattice/other.py": "",
        "src/lattice/rules/one.py": "",
        "src/lattice/rules/known.py": "iter_modules(rules.__path__)",
        "tests/fakes/site.py": "from lattice import low",
        "tests/unit/test_low.py": "from tests.fakes import site",
        "tests/unit/test_other.py": "import lattice.other",
        "tests/unit/test_rules.py": "from lattice.rules.known import known_rules",
        "tests/e2e/test_story.py": "from lattice.low import x",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(quick, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ("src/lattice/low.py", ["tests/unit/test_low.py"]),
        ("tests/unit/test_other.py", ["tests/unit/test_other.py"]),
        ("tests/e2e/test_story.py", []),
        ("src/lattice/rules/one.py", ["tests/unit/test_rules.py"]),
        ("README.md", []),
    ],
)
def test_a_change_brings_the_tests_above_it_that_need_no_lab(
    tree: Path, monkeypatch: pytest.MonkeyPatch, changed: str, chosen: list[str]
) -> None:
    monkeypatch.setattr(quick, "changed_files", lambda _: {changed})
    assert chosen_tests("HEAD") == chosen
