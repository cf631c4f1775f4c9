"""Measures the tree: `just house [--json]`.

Lines and files are those of hand-written code under `src`. Words are the parts of identifiers:
`job_was_told` and `JobWasTold` both have the part `told`.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "lattice"
BANNED = (
    "tell", "told", "say", "said", "words", "look", "sight", "glance", "heard", "way", "place",
    "life", "door", "kept", "whose",
)  # fmt: skip
LONGEST_SENTENCE = 25
"""Words in a sentence of a docstring."""
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_GENERATED = frozenset({"command_table.py", "verbs.py", "verbs_async.py"})
_DRAWN = re.compile(r" {2,6}\S")
"""A line of a drawing, a table or an example."""
_PARAGRAPH = re.compile(r"\n\n|\n(?=- )|\n(?=\S.{,12} {2,}\S)")
"""Also between items of a list, and between terms of a definition list."""
_NOT_GERUNDS = frozenset(
    {
        "accounting",
        "recording",
        "setting",
        "wiring",
        "settings",
        "sharing",
        "ping",
        "string",
        "ring",
        "flapping",
    }
)
"""Modules whose names are nouns."""
_COMPOSE = (
    "import time; from tests.fakes.server import composed; composed(); "
    "before = time.process_time(); composed(); print(time.process_time() - before)"
)


def files() -> tuple[Path, ...]:
    """The modules that are written by hand."""
    return tuple(
        sorted(
            each
            for each in SOURCE.rglob("*.py")
            if "_pb2" not in each.name and each.name not in _GENERATED
        )
    )


@dataclass(frozen=True, slots=True)
class Module:
    """What is counted of one module."""

    path: Path
    names: tuple[str, ...]
    """Every name that it defines."""
    classes: tuple[str, ...]
    """Its public classes."""
    docstrings: tuple[str, ...]
    functions: tuple[tuple[int, str], ...]
    """Lines and name of each."""


@cache
def modules() -> tuple[Module, ...]:
    """All files, parsed once for a process: that takes ten times as long as to count."""
    return tuple(_module(path, ast.parse(path.read_text())) for path in files())


def _module(path: Path, tree: ast.Module) -> Module:
    names: list[str] = []
    docstrings = [ast.get_docstring(tree)]
    functions = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.append(node.name)
                docstrings.append(ast.get_docstring(node))
                functions.append(((node.end_lineno or node.lineno) - node.lineno + 1, node.name))
            case ast.ClassDef():
                names.append(node.name)
                docstrings.append(ast.get_docstring(node))
            case ast.arg():
                names.append(node.arg)
            case ast.Name(ctx=ast.Store()):
                names.append(node.id)
            case ast.Attribute(ctx=ast.Store()):
                names.append(node.attr)
    classes = (each.name for each in tree.body if isinstance(each, ast.ClassDef))
    return Module(
        path,
        tuple(names),
        tuple(each for each in classes if not each.startswith("_")),
        tuple(each for each in docstrings if each),
        tuple(functions),
    )


def parts(name: str) -> tuple[str, ...]:
    """The words that an identifier is made of."""
    return tuple(each.lower() for each in _PART.findall(name))


def banned_words() -> dict[str, int]:
    """How often each banned word is a part of a name that is defined in `src`."""
    found: Counter[str] = Counter()
    for module in modules():
        names = (module.path.stem, *module.names)
        found.update(each for name in names for each in parts(name) if each in BANNED)
    return {each: found[each] for each in BANNED}


def gerunds() -> tuple[str, ...]:
    """Modules that are named after an activity."""
    return tuple(
        str(each.relative_to(SOURCE))
        for each in files()
        if any(part.endswith("ing") and part not in _NOT_GERUNDS for part in parts(each.stem)[-1:])
    )


def repeated_classes() -> tuple[str, ...]:
    """Public class names that stand in several modules."""
    found = Counter(name for module in modules() for name in module.classes)
    return tuple(sorted(name for name, count in found.items() if count > 1))


def long_sentences() -> tuple[str, ...]:
    """Sentences of docstrings that are too long, each with where it stands."""
    return tuple(
        f"{where}: {sentence[:80]}"
        for where, sentence in sentences()
        if len(sentence.split()) > LONGEST_SENTENCE
    )


def sentences() -> Iterator[tuple[str, str]]:
    """Every sentence of a docstring, and where it stands. Indented lines are left out."""
    for module in modules():
        for text in module.docstrings:
            prose = "\n".join(each for each in text.splitlines() if not _DRAWN.match(each))
            for part in _PARAGRAPH.split(prose):
                for sentence in _SENTENCE.split(" ".join(part.split())):
                    if sentence:
                        yield str(module.path.relative_to(SOURCE)), sentence


def sample(seed: int) -> Iterator[str]:
    """Names that are defined and sentences of docstrings, at random, to judge them."""
    chance = random.Random(seed)
    names = sorted(
        {
            f"{module.path.relative_to(SOURCE)}: {name}"
            for module in modules()
            for name in module.names
            if len(name) > 2 and not name.startswith("__")
        }
    )
    yield from chance.sample(names, 60)
    yield from (": ".join(each) for each in chance.sample(sorted(set(sentences())), 40))


def small_files_with_one_importer(most_lines: int = 60) -> tuple[str, ...]:
    """Modules that could stand in the one module that imports them."""
    texts = {each: each.read_text() for each in files()}
    found = []
    for path, text in texts.items():
        if path.name == "__init__.py" or text.count("\n") >= most_lines:
            continue
        dotted = ".".join(("lattice", *path.relative_to(SOURCE).with_suffix("").parts))
        package, _, leaf = dotted.rpartition(".")
        pattern = re.compile(
            rf"{re.escape(dotted)}\b|from {re.escape(package)} import [^\n]*\b{leaf}\b"
        )
        importers = [
            each for each, other in texts.items() if each != path and pattern.search(other)
        ]
        if len(importers) == 1:
            found.append(str(path.relative_to(SOURCE)))
    return tuple(found)


def longest_function() -> tuple[int, str]:
    """Its lines, and where it stands."""
    return max(
        (length, f"{module.path.relative_to(SOURCE)}: {name}")
        for module in modules()
        for length, name in module.functions
    )


def imports_of(path: Path) -> int:
    """How many modules of Lattice a module imports."""
    return len(set(re.findall(r"^from (lattice[\w.]*) import", path.read_text(), re.MULTILINE)))


def compose_seconds() -> float:
    """Processor time of composing a server with every feature."""
    words = [sys.executable, "-c", _COMPOSE]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def measured() -> dict[str, Any]:
    """The whole table."""
    every = files()
    texts = [each.read_text() for each in every]
    server = (each.read_text() for each in every if SOURCE / "server" in each.parents)
    length, function = longest_function()
    return {
        "files": len(every),
        "lines": sum(text.count("\n") for text in texts),
        "none_in_server": sum(text.count("| None") for text in server),
        "composition_fan_out": imports_of(SOURCE / "server" / "listeners" / "composition.py"),
        "features_fan_out": imports_of(SOURCE / "server" / "features.py"),
        "longest_function": length,
        "longest_function_is": function,
        "compose_cpu_s": round(compose_seconds(), 3),
        "small_files_with_one_importer": len(small_files_with_one_importer()),
        "gerund_modules": len(gerunds()),
        "repeated_classes": len(repeated_classes()),
        "long_sentences": len(long_sentences()),
        "banned_words": sum(banned_words().values()),
        "banned": banned_words(),
    }


def main() -> None:
    """Print the table, or lists of what it counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", choices=("gerunds", "classes", "sentences", "small"))
    parser.add_argument("--sample", type=int, metavar="SEED", help="60 names, 40 sentences")
    options = parser.parse_args()
    if options.sample is not None:
        print("\n".join(sample(options.sample)))
        return
    lists = {
        "gerunds": gerunds,
        "classes": repeated_classes,
        "sentences": long_sentences,
        "small": small_files_with_one_importer,
    }
    if options.list:
        print("\n".join(lists[options.list]()))
        return
    found = measured()
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' '):32}{value}")


if __name__ == "__main__":
    main()
