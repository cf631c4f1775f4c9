"""Each promise with the tests that prove it: `just spec`, `just spec --json`, `just spec --gate`.

`--gate` names for each promise its story in the gate, the tests with the mark `story`; a promise
without one is not kept. Reads the ids from docs/promises.md and the marks from the tests' own
text, so it needs no lab and runs nothing.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_ID = re.compile(r"^- ([A-Z]+-\d+) ", re.MULTILINE)


def promises() -> list[str]:
    """The ids, in the order of the page."""
    return _ID.findall((ROOT / "docs" / "promises.md").read_text())


def proofs(only: str = "") -> dict[str, list[str]]:
    """Every id with the tests that name it; an empty list where none does.

    `only` leaves those with a further mark of that name.
    """
    table: dict[str, list[str]] = {promise: [] for promise in promises()}
    for test in marked_tests():
        if not only or only in test.marks:
            for promise in test.promises:
                table.setdefault(promise, []).append(test.name)
    return table


@dataclass(frozen=True, slots=True)
class Marked:
    """A test with the marks that its own text gives it."""

    name: str
    promises: tuple[str, ...]
    threats: tuple[str, ...]
    """Rows of docs/threat-model.md."""
    marks: frozenset[str]


@cache
def marked_tests() -> tuple[Marked, ...]:
    """Every test of the project."""
    found: list[Marked] = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(file.read_text())
        found += _in_body(tree.body, file.relative_to(ROOT).as_posix(), module_marks(tree))
    return tuple(found)


def module_marks(tree: ast.Module) -> list[ast.expr]:
    """The marks that hold for a whole module."""
    return [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == "pytestmark" for each in node.targets)
    ]


def _in_body(body: list[ast.stmt], prefix: str, above: list[ast.expr]) -> Iterator[Marked]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _in_body(node.body, f"{prefix}::{node.name}", [*above, *node.decorator_list])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            marks = [*above, *node.decorator_list]
            yield Marked(
                name=f"{prefix}::{node.name}",
                promises=mark_arguments(marks, "spec"),
                threats=mark_arguments(marks, "threat"),
                marks=mark_names(marks),
            )


def mark_arguments(marks: list[ast.expr], name: str) -> tuple[str, ...]:
    """What `pytest.mark.NAME(…)` names, each once."""
    found = (
        argument.value
        for mark in marks
        for call in ast.walk(mark)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == name
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    )
    return tuple(dict.fromkeys(found))


def mark_names(marks: list[ast.expr]) -> frozenset[str]:
    """The names behind `pytest.mark.`; of single parameters too."""
    return frozenset(
        node.attr
        for mark in marks
        for node in ast.walk(mark)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "mark"
    )


def main() -> None:
    words = sys.argv[1:]
    in_gate = "--gate" in words
    table = proofs("story" if in_gate else "")
    if "--json" in words:
        print(json.dumps(table, indent=1))
        return
    for promise, found in table.items():
        print(promise if found else f"{promise}  ({'not kept' if in_gate else 'nothing yet'})")
        for test in found:
            print(f"    {test}")
    kept = sum(1 for found in table.values() if found)
    print(f"{kept} of {len(table)} promises have {'a story in the gate' if in_gate else 'tests'}")
    if in_gate:
        print(f"not kept: {', '.join(promise for promise, found in table.items() if not found)}")


if __name__ == "__main__":
    main()
