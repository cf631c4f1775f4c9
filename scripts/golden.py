"""Writes tests/golden: what people and programs see of Lattice, a text file for each kind.

    rpcs.txt       every gRPC method: types, streaming, permission
    help.txt       `--help` of every command and program
    options.txt    options of server, agent and helper; the client's keys and variables
    answers.txt    fields of what each command prints with `-o json`
    metrics.txt    names, kinds and labels on the pages of server and agent
    exits.txt      exit codes by name
    agent_wire.txt the wire between agents and servers; it only grows (scripts/golden_wire.py)

`just generate` calls it; tests/unit/scripts/test_golden.py compares. REST is described by
scripts/openapi.py, the keys of the configuration files by scripts/reference_config.py.
"""

from __future__ import annotations

import argparse
import ast
import os
import pkgutil
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from lattice.agent.main import _parser as agent_parser
from lattice.cli.catalogue import GROUPS
from lattice.cli.command_table import COMMANDS
from lattice.cli.tree import root
from lattice.client import settings
from lattice.helper.flags import helper_flags
from lattice.server.main import _parser as server_parser
from lattice.wire import v1
from lattice.wire.v1 import options_pb2
from scripts.golden_answers import answers
from scripts.golden_exits import exits
from scripts.golden_metrics import metrics
from scripts.golden_wire import agent_wire

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests/golden"
PARSERS = (server_parser, agent_parser, helper_flags)
_WIDTH = "80"
_VARIABLE = re.compile(r"_?LATTICE_[A-Z0-9_]+|NO_COLOR|XDG_CONFIG_HOME")


def rpcs() -> str:
    """A line a method, by service."""
    lines = []
    for module in sorted(each.name for each in pkgutil.iter_modules(v1.__path__)):
        if not module.endswith("_pb2"):
            continue
        for service in import_module(
            f"{v1.__name__}.{module}"
        ).DESCRIPTOR.services_by_name.values():
            lines += [_rpc(service.full_name, method) for method in service.methods]
    return "\n".join(sorted(lines)) + "\n"


def _rpc(service: str, method: Any) -> str:
    described = method.GetOptions().Extensions[options_pb2.permission]
    request = ("stream " if method.client_streaming else "") + method.input_type.full_name
    answer = ("stream " if method.server_streaming else "") + method.output_type.full_name
    return (
        f"{service}/{method.name}({request}) -> {answer} [{options_pb2.Permission.Name(described)}]"
    )


def help_texts() -> str:
    """Each as it is printed on a terminal of 80 columns."""
    names = [(), *((name,) for name, _ in GROUPS), *(name.split() for name, _, _ in COMMANDS)]
    texts = {" ".join(("lattice", *name)): _help_of(name) for name in names}
    with _columns():
        texts |= {made.prog: made.format_help() for made in (parser() for parser in PARSERS)}
    return "\n".join(f"$ {name} --help\n{text}" for name, text in texts.items())


def _help_of(names: Any) -> str:
    found = CliRunner().invoke(
        root({}), [*names, "--help"], prog_name="lattice", terminal_width=int(_WIDTH)
    )
    assert found.exit_code == 0, found.output
    return found.output


@contextmanager
def _columns() -> Iterator[None]:
    """Has argparse write for a terminal of a fixed width."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _WIDTH
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def options() -> str:
    """Options of the programs, the hidden ones too; keys of the client; variables."""
    parts = [_program(parser()) for parser in PARSERS]
    parts.append(["lattice, ~/.config/lattice/config.yaml", *_client_keys()])
    parts.append(["environment", *(f"  {name}" for name in _variables())])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _program(parser: argparse.ArgumentParser) -> list[str]:
    lines = [parser.prog]
    for action in parser._actions:  # noqa: SLF001 - there is no other list of them
        if action.nargs == 0:
            kind = "switch"
        elif action.choices:
            kind = "|".join(str(each) for each in action.choices)
        else:
            kind = getattr(action.type, "__name__", "str")
        repeated = ", repeated" if isinstance(action, argparse._AppendAction) else ""  # noqa: SLF001
        default = "required" if action.required else f"default {action.default!r}"
        if action.nargs == 0:
            default = ""
        facts = (kind + repeated, default)
        flags = ", ".join(action.option_strings)
        lines.append(f"  {flags}: {'; '.join(filter(None, facts))}")
    return lines


def _client_keys() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text("api_url: https://server\n")
        usual = settings.Settings.load({"LATTICE_CONFIG": str(file), "HOME": folder})
    for key in settings.KEYS:
        kind = "|".join(settings._CHOICES.get(key, ("text",)))  # noqa: SLF001
        default = "required" if key == "api_url" else f"default {getattr(usual, key)!r}"
        yield f"  {key}: {kind}; {default}"


def _variables() -> list[str]:
    """Every environment variable of Lattice's own that stands in the code as a text."""
    found = set()
    for file in (ROOT / "src/lattice").rglob("*.py"):
        text = file.read_text()
        if "LATTICE_" in text or "NO_COLOR" in text or "XDG_" in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= {node.value} if _VARIABLE.fullmatch(node.value) else set()
    return sorted(found)


DOCUMENTS: dict[str, Callable[[], str]] = {
    "rpcs.txt": rpcs,
    "help.txt": help_texts,
    "options.txt": options,
    "answers.txt": answers,
    "metrics.txt": metrics,
    "exits.txt": exits,
    "agent_wire.txt": lambda: agent_wire((FOLDER / "agent_wire.txt").read_text()),
}

if __name__ == "__main__":
    for name, made in DOCUMENTS.items():
        (FOLDER / name).write_text(made())
