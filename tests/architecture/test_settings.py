"""Every documented setting changes something, or says that it doesn't: none is silent.

By the syntax trees of `src`: a key counts as read where code outside the configuration's own rules
takes it from its section. What nobody reads must be named in a warning or a problem.
"""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lattice.agent.sections import AgentConfig
from lattice.base.setting import Secret, Unread, setting_of
from lattice.server.config.load import check_server_config
from lattice.server.config.sections import ServerConfig

SRC = Path(__file__).parents[2] / "src" / "lattice"
# They judge what a file says and use nothing of it.
RULES = {
    "base/config_checks.py",
    "server/config/load.py",
    "server/config/api_rules.py",
    "server/config/sensitive_rules.py",
}
# These act there alone: without them such a file does not start.
JUDGED = {"api.insecure", "gate.own_network"}
SLURM = "slurm: {rest_url: 'unix:/run/slurmrestd.socket'}\n"

# Set so, `--check-config` answers with a warning (True: it is accepted) or a problem.
REPORTED: dict[str, tuple[str, bool]] = {
    "quorum.node_id": ("1", True),
    "quorum.data_dir": ("/var/lib/raft", True),
    "quorum.peers": ("[{id: 1, address: a}]", True),
    "quorum.peers.id": ("", True),
    "quorum.peers.address": ("", True),
    "storage.s3_endpoint": ("'https://s3.example'", True),
    "storage.bucket": ("b", True),
    "storage.region": ("r", True),
    "storage.access_key": ("k", True),
    "storage.secret_key": ("k", True),
    "storage.nfs_home": ("/home", True),
    "storage.nfs_work": ("/work", True),
    "storage.sensitive_bucket": ("b", False),
    "node_agent.heartbeat_interval_s": ("10", False),
}


def sections(kind: type[Any], path: str = "") -> Iterator[tuple[str, type[Any], list[str]]]:
    """Each section by its path: its class and its plain keys."""
    plain = []
    hints = typing.get_type_hints(kind)
    for key in fields(kind):
        hint = hints[key.name]
        if setting_of(key) is None or hint is Unread:
            continue
        at = f"{path}.{key.name}" if path else key.name
        inner = hint
        if typing.get_origin(hint) in {tuple, Mapping} or "Mapping" in str(hint):
            inner = (
                typing.get_args(hint)[-1] if "Mapping" in str(hint) else typing.get_args(hint)[0]
            )
        if is_dataclass(inner) and not hasattr(inner, "parse") and inner is not Secret:
            yield from sections(typing.cast("type[Any]", inner), at)
            if inner is not hint:
                plain.append(key.name)
        else:
            plain.append(key.name)
    yield path, kind, plain


class Reads(ast.NodeVisitor):
    """Which keys of which section classes a module takes."""

    def __init__(self, by_name: Mapping[str, set[str]], classes: set[str]) -> None:
        self._by_name = by_name
        self._classes = classes
        self._known: list[dict[str, set[str]]] = [{}]
        self.found: set[tuple[str, str]] = set()
        self.whole: set[str] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._known.append({"self": {node.name}} if node.name in self._classes else {})
        self.generic_visit(node)
        self._known.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        names: dict[str, set[str]] = {}
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if each.annotation is not None:
                names[each.arg] = set(re.findall(r"\w+", ast.unparse(each.annotation)))
        self._known.append({name: kinds & self._classes for name, kinds in names.items()})
        # Twice: a name may be used in a nested function above its assignment.
        for each in ast.walk(node):
            if isinstance(each, ast.Assign):
                self._assign(each)
            elif isinstance(each, ast.comprehension | ast.For):
                self._bind(each.target, self._kinds(each.iter))
        self.generic_visit(node)
        self._known.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name of the base class

    def _assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, value in zip(target.elts, node.value.elts, strict=False):
                    self._bind(one, self._kinds(value))
            else:
                self._bind(target, self._kinds(node.value))

    def _bind(self, target: ast.expr, kinds: set[str]) -> None:
        for each in ast.walk(target):
            if isinstance(each, ast.Name) and kinds:
                self._known[-1].setdefault(each.id, set()).update(kinds)

    def _kinds(self, value: ast.expr) -> set[str]:
        if isinstance(value, ast.Name):
            return {kind for known in self._known for kind in known.get(value.id, ())}
        if isinstance(value, ast.Attribute):
            return self._by_name.get(value.attr, set())
        if isinstance(value, ast.Call):
            func = value.func.value if isinstance(value.func, ast.Attribute) else value.func
            return set().union(*(self._kinds(each) for each in (func, *value.args)))
        return set()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        for kind in self._kinds(node.value):
            self.found.add((kind, node.attr))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        # `fields(section)`, `asdict(section)`: every key at once.
        if isinstance(node.func, ast.Name) and node.func.id in {"fields", "asdict"}:
            for each in node.args:
                self.whole |= self._kinds(each)
        self.generic_visit(node)


parsed = cache(ast.parse)


def unread(config: type[Any]) -> set[str]:
    found = [*sections(config)]
    classes = {kind.__name__ for _, kind, _ in found}
    by_name: dict[str, set[str]] = {}
    for path, kind, _ in found:
        by_name.setdefault(path.rpartition(".")[2] or "config", set()).add(kind.__name__)
    reads: set[tuple[str, str]] = set()
    whole: set[str] = set()
    # A key is reached through the name of a section or of its class.
    names = re.compile(rf"\b(?:{'|'.join(classes)})\b|\.(?:{'|'.join(by_name)})\b")
    for file in sorted(SRC.rglob("*.py")):
        text = file.read_text()
        if file.relative_to(SRC).as_posix() in RULES or not names.search(text):
            continue
        reader = Reads(by_name, classes)
        reader.visit(parsed(text))
        reads |= reader.found
        whole |= reader.whole
    return {
        f"{path}.{key}".lstrip(".")
        for path, kind, keys in found
        for key in keys
        if (kind.__name__, key) not in reads and kind.__name__ not in whole
    }


@pytest.mark.spec("OPS-7")
def test_every_key_of_the_agent_is_read() -> None:
    assert unread(AgentConfig) == set()


@pytest.mark.spec("OPS-7")
def test_every_key_of_the_server_is_read_or_says_that_it_is_not() -> None:
    assert unread(ServerConfig) == set(REPORTED) | JUDGED


@pytest.mark.spec("OPS-7")
@pytest.mark.parametrize("path", [path for path, (value, _) in REPORTED.items() if value])
def test_a_key_that_nobody_reads_says_so(path: str, tmp_path: Path) -> None:
    value, accepted = REPORTED[path]
    section, _, key = path.rpartition(".")
    file = tmp_path / "server.yaml"
    file.write_text(f"{SLURM}{section}: {{{key}: {value}}}\n")
    checked = check_server_config(file, {})
    reported = checked.warnings if accepted else checked.problems
    assert any(f" {path}: " in each for each in reported)
    assert (checked.config is not None) is accepted


@pytest.mark.spec("OPS-7")
def test_a_file_that_sets_none_of_them_hears_of_none(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(SLURM)
    checked = check_server_config(file, {})
    assert not [each for each in checked.warnings if "is not used" in each]
    assert checked.problems == ()
