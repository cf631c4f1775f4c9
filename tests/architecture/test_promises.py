"""A test may only claim a promise that exists, and each test claims its own."""

from __future__ import annotations

import ast
from pathlib import Path

from scripts.roadmap import roadmap
from scripts.spec import ROOT, promises, proofs


def test_every_claimed_promise_exists() -> None:
    assert set(proofs()) == set(promises())


def test_promises_are_numbered_once() -> None:
    assert len(promises()) == len(set(promises()))


def test_no_module_claims_a_promise_for_all_its_tests() -> None:
    """Some of them would not show it."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [each.relative_to(ROOT).as_posix() for each in files if _claims_for_all(each)] == []


def _claims_for_all(file: Path) -> bool:
    text = file.read_text()
    for node in ast.parse(text).body if "pytestmark" in text else ():
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            inside = list(ast.walk(node))
            names = {each.id for each in inside if isinstance(each, ast.Name)}
            marks = {each.attr for each in inside if isinstance(each, ast.Attribute)}
            if "pytestmark" in names and "spec" in marks:
                return True
    return False


def test_every_promise_with_tests_has_a_story_in_the_gate() -> None:
    """What is kept is shown at every landing; `just spec --gate` lists the rest as not kept."""
    stories = proofs("story")
    assert [promise for promise, tests in proofs().items() if tests and not stories[promise]] == []


def test_the_roadmap_is_fresh() -> None:
    """`just generate` writes it again."""
    assert (ROOT / "ROADMAP.md").read_text() == roadmap()
