"""Runs the tests that import what has changed since a commit: the last step of `just quick`.

A changed module is followed up the imports, through sources and fakes, to the tests above it. A
changed test is run itself. What needs a lab is left out.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = {
    "src/lattice": "src",
    "packages/lattice-run/src": "packages/lattice-run/src",
    "tests": ".",
    "lab": ".",
    "bench": ".",
    "scripts": ".",
}
_TESTS = ("tests/architecture/", "tests/contract/", "tests/unit/")
"""Where to look for tests: these folders hold what needs no lab."""
_WORTH_A_SECOND_WORKER = 30
"""Test files; below that a second worker costs more than it saves."""
_NONE_SELECTED = 5
"""pytest's exit status where marks leave no test."""


def module_name(file: Path, root: Path) -> str:
    """The dotted name of a Python file below the folder that is on the path."""
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """Every module of the project by its name."""
    return {
        module_name(file, ROOT / base): file
        for folder, base in _FOLDERS.items()
        for file in (ROOT / folder).rglob("*.py")
        if "node_modules" not in file.parts
    }


def imported(source: str) -> set[str]:
    """The names that a module's text imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{each.name}" for each in node.names}
    return found


def listed(name: str, source: str, names: Iterable[str]) -> set[str]:
    """The modules beside one that imports its whole folder by `iter_modules`."""
    if "iter_modules(" not in source:
        return set()
    folder = name.rpartition(".")[0] + "."
    return {each for each in names if each.startswith(folder)}


def importers(imports: Mapping[str, Iterable[str]], changed: Iterable[str]) -> set[str]:
    """The changed modules, and all that import them, directly or not."""
    above: dict[str, set[str]] = defaultdict(set)
    for name, below in imports.items():
        for each in below:
            above[each].add(name)
    found, waiting = set(changed), list(changed)
    while waiting:
        for each in above[waiting.pop()] - found:
            found.add(each)
            waiting.append(each)
    return found


def changed_files(since: str) -> set[str]:
    """Paths that differ from a commit, untracked ones too."""
    differing = _git("diff", "--name-only", since)
    untracked = _git("ls-files", "--others", "--exclude-standard")
    return {*differing.splitlines(), *untracked.splitlines()}


def chosen_tests(since: str) -> list[str]:
    """The test files to run."""
    every = modules()
    paths = {name: file.relative_to(ROOT).as_posix() for name, file in every.items()}
    changed = changed_files(since)
    touched = [name for name, path in paths.items() if path in changed]
    texts = {name: file.read_text() for name, file in every.items()}
    imports = {name: imported(text) | listed(name, text, every) for name, text in texts.items()}
    found = (paths[name] for name in importers(imports, touched))
    return sorted(
        path
        for path in found
        if path.startswith(_TESTS) and path.rpartition("/")[2].startswith("test_")
    )


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def main() -> int:
    files = chosen_tests(sys.argv[1] if len(sys.argv) > 1 else "HEAD")
    if not files:
        print("No test imports what has changed.")
        return 0
    workers = ["-n", "2"] if len(files) >= _WORTH_A_SECOND_WORKER else []
    words = ["-q", "-p", "no:cacheprovider", *workers, "-m", "not lab and not long and not timing"]
    ended = subprocess.run(["pytest", *words, *files], cwd=ROOT, check=False).returncode
    return 0 if ended == _NONE_SELECTED else ended


if __name__ == "__main__":
    sys.exit(main())
