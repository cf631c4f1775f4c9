"""A rule is one file: putting it into the folder is enough."""

from __future__ import annotations

import ast
import sys
from itertools import groupby
from pathlib import Path

import pytest

from lattice.features.diag import rules
from lattice.features.diag.rules.engine import known_rules

FOLDER = Path(rules.__path__[0])


def rule_classes(file: Path) -> list[str]:
    """The names of the classes in a file that have a method `judge`."""
    return [
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(each, ast.FunctionDef) and each.name == "judge" for each in node.body)
    ]


@pytest.mark.spec("DIAG-5")
def test_rules_of_one_area_stand_together_and_silent_nodes_first() -> None:
    rules = known_rules()
    assert rules[0].name == "node_silent"
    areas = [area for area, _ in groupby(each.area for each in rules)]
    assert len(areas) == len(set(areas))


@pytest.mark.spec("DIAG-5")
@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda each: each.stem)
def test_a_file_has_the_one_rule_of_its_name_or_none(file: Path) -> None:
    found = [type(each).__name__ for each in known_rules() if each.name == file.stem]
    assert rule_classes(file) == found


@pytest.mark.spec("DIAG-5")
def test_names_and_orders_are_unique() -> None:
    rules = known_rules()
    assert len({each.order for each in rules}) == len(rules)  # type: ignore[attr-defined]
    assert len({each.name for each in rules}) == len(rules)


@pytest.mark.spec("DIAG-5")
def test_a_new_file_is_a_new_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quota.py").write_text(
        "class _Base:\n    def judge(self, case): ...\n\n\n"
        "class Quota(_Base):\n    name, order = 'quota', 15\n"
    )
    before = [each.name for each in known_rules()]
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    try:
        found = [each.name for each in known_rules()]
    finally:
        sys.modules.pop(f"{rules.__name__}.quota", None)
    assert found == [before[0], "quota", *before[1:]]
