"""Each promise with the tests that prove it: `just spec`, `just spec --json`.

Reads the ids from docs/promises.md and the marks from the tests' own text, so it needs no lab
and runs nothing.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_ID = re.compile(r"^- ([A-Z]+-\d+) ", re.MULTILINE)


def promises() -> list[str]:
    """The ids, in the order of the page."""
    return _ID.findall((ROOT / "docs" / "promises.md").read_text())


def proofs() -> dict[str, list[str]]:
    """Every id with the tests that name it; an empty list where none does."""
    table: dict[str, list[str]] = {promise: [] for promise in promises()}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for promise, test in _marks(file):
            table.setdefault(promise, []).append(test)
    return table


def _marks(file: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(file.read_text())
    name = file.relative_to(ROOT).as_posix()
    whole = [
        promise
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == "pytestmark" for each in node.targets)
        for promise in _ids([node.value])
    ]
    yield from _in_body(tree.body, name, whole)


def _in_body(body: list[ast.stmt], prefix: str, above: list[str]) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _in_body(
                node.body, f"{prefix}::{node.name}", [*above, *_ids(node.decorator_list)]
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            for promise in dict.fromkeys([*above, *_ids(node.decorator_list)]):
                yield promise, f"{prefix}::{node.name}"


def _ids(marks: list[ast.expr]) -> list[str]:
    return [
        argument.value
        for mark in marks
        for call in ast.walk(mark)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "spec"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def main() -> None:
    table = proofs()
    if "--json" in sys.argv[1:]:
        print(json.dumps(table, indent=1))
        return
    for promise, tests in table.items():
        print(promise if tests else f"{promise}  (nothing yet)")
        for test in tests:
            print(f"    {test}")
    kept = sum(1 for tests in table.values() if tests)
    print(f"{kept} of {len(table)} promises have tests")


if __name__ == "__main__":
    main()
