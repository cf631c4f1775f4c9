"""A rule is one file: putting it into the folder is enough."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from lattice.features.diag import rules
from lattice.features.diag.rules.known import known_rules

FOLDER = Path(rules.__path__[0])
ORDER = [
    *("node_silent", "job_hang", "straggler", "buffered_output", "clock"),
    *("oom_kill", "memory_limit"),
    *("group_span", "link_down", "link_flapping", "link_speed", "link_errors"),
    *("retransmits", "congestion", "bandwidth", "between_nodes"),
    *("hung_mount", "slow_mount", "io_latency"),
    *("gpu_errors", "gpu_hang", "gpu_health", "throttle", "gpu_idle", "data_loader", "gpu_traffic"),
]


def rule_classes(file: Path) -> list[str]:
    """The names of the classes in a file that have a method `judge`."""
    return [
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(each, ast.FunctionDef) and each.name == "judge" for each in node.body)
    ]


@pytest.mark.spec("DIAG-5")
def test_rules_stand_in_the_order_of_the_page() -> None:
    assert [each.name for each in known_rules()] == ORDER


@pytest.mark.spec("DIAG-5")
@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda each: each.stem)
def test_a_file_has_the_one_rule_of_its_name_or_none(file: Path) -> None:
    found = [type(each).__name__ for each in known_rules() if each.name == file.stem]
    assert rule_classes(file) == found


@pytest.mark.spec("DIAG-5")
def test_names_and_orders_are_unique() -> None:
    orders = [each.order for each in known_rules()]  # type: ignore[attr-defined]
    assert len(set(orders)) == len(orders) == len(set(ORDER))


@pytest.mark.spec("DIAG-5")
def test_a_new_file_is_a_new_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quota.py").write_text(
        "class _Base:\n    def judge(self, case): ...\n\n\n"
        "class Quota(_Base):\n    name, order = 'quota', 15\n"
    )
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    try:
        found = [each.name for each in known_rules()]
    finally:
        sys.modules.pop(f"{rules.__name__}.quota", None)
    assert found == [ORDER[0], "quota", *ORDER[1:]]
