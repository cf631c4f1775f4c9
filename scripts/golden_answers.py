"""What each command prints for programs: field names, types and what may be null.

Each command runs in a shell that answers every question with a made-up value of its type, and
keeps what is printed. So the command itself says which type it prints. Names of classes stand
nowhere: people don't see them.
"""

from __future__ import annotations

import json
import shlex
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lattice.base.command import COMMON
from lattice.base.fast_start import argv
from lattice.cli.command_table import COMMANDS
from lattice.cli.run import load
from lattice.features.watch.command.notify import _summary
from lattice.features.watch.model import WatchAlert, WatchEnd
from tests.fakes.shell import FakeFollowed, FakeShell

LINES = (
    "login --status",
    "whoami",
    "status",
    "status 1",
    "status --watch",
    "status 1 --watch",
    "history --limit 1",
    "submit -- true",
    "cancel 1",
    "wait 1 --timeout 1",
    "logs 1",
    "watch 1",
    "sessions",
    "top 1",
    "top 1 --interval 1",
    "top 1 --csv",
    "report 1",
    "runs 1",
    "timeline 1 --spans tests/fixtures/run/spans.json",
    "runs --name resnet-7",
    "diag 1",
    "diag 1 --stacks",
    "compare 1 2",
    "compare 1 2 -o csv",
    "telemetry 1",
    "telemetry 1 --mode debug",
    "share 1",
    "share 1 --with 1",
    "unshare 1 --with 1",
    "nodes",
    "nodes n1",
    "admin drain n1",
    "admin undrain n1",
    "admin disable n1",
    "admin enable n1",
    "admin check n1 --no-wait",
    "admin check n1 --history",
    "bench compare tests/fixtures/bench/capture.json tests/fixtures/bench/guest.json",
    "admin claim n1",
    "admin release n1",
    "admin claims",
    "admin agents",
    "admin doctor",
    "admin ping n1",
    "admin enrol n1",
    "admin revoke n1 --reason x",
    "admin reinstate n1",
    "admin quorum",
    "admin backup",
    "admin backups",
    "admin verify",
    "admin restore",
    "admin lock user x --reason x",
    "admin unlock user x",
    "admin locks",
    "audit query --limit 1",
    "audit verify",
    "admin tenant list",
    "admin tenant show physics",
    "admin tenant create physics --max-nodes 4",
    "admin tenant update physics --max-nodes 4",
    "vclusters",
)
"""One for each kind of document a command can print."""
WITHOUT = frozenset({"logout", "attach", "session", "completion", "replay", "bench capture"})
"""Commands that print none."""
_MOMENT = datetime(2026, 11, 15, tzinfo=UTC)
_NAMES = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    datetime: "time",
    types.NoneType: "null",
}


class Maker:
    """Makes a value of a type: all of it, or `bare`; of an enum the first, unless `chosen`."""

    def __init__(self, *chosen: Enum, bare: bool = False) -> None:
        self._chosen = {type(each): each for each in chosen}
        self._bare = bare

    def __call__(self, kind: Any) -> Any:
        arguments, origin = get_args(kind), get_origin(kind)
        if origin in {types.UnionType, Union}:
            return None if self._bare and types.NoneType in arguments else self(arguments[0])
        if origin is tuple:
            held = arguments[0]
            many = get_args(held) if get_origin(held) is types.UnionType else (held,)
            return tuple(self(each) for each in many if each is not types.NoneType)
        if origin is Literal:
            return arguments[0]
        if is_dataclass(kind):
            hints = get_type_hints(kind)
            values = {each.name: self(hints[each.name]) for each in fields(kind)}
            return kind(**values)  # type: ignore[operator]
        if issubclass(kind, Enum):
            return self._chosen.get(kind, next(iter(kind)))
        plain = {str: "1", int: 1, float: 1.0, bool: not self._bare, datetime: _MOMENT}
        return plain[kind]


class RecordingShell(FakeShell):
    """Answers with made-up values; keeps what is printed, and which line printed it."""

    fixed_token = True

    def __init__(self, make: Maker, output: str = "json") -> None:
        super().__init__({}, output=output)
        self.longest_s = 10.0
        self.make = make
        self.printed: list[tuple[str, Any]] = []
        self.printed_at: set[tuple[str, int]] = set()

    def call(self, call: Any, *, anonymous: bool = False) -> Any:  # noqa: ARG002
        return self.make(call.answer)

    def stream(self, call: Any) -> FakeFollowed:
        # A command may leave at the end of the job, so that comes last.
        kinds = sorted(call.kinds.items(), key=lambda each: each[0] == "ended")
        return FakeFollowed([self.make(kind) for _, kind in kinds])

    def reference(self, word: str | None) -> str:
        return word or "1"

    def document(self, answer: object) -> None:
        self._keep("document", answer)

    def record(self, answer: object) -> None:
        self._keep("record", answer)

    def write(self, text: str) -> None:
        if self.output == "json" and text.startswith("{"):
            for line in text.splitlines():
                self._keep("record", json.loads(line))
        else:
            self._keep("columns", text.partition("\n")[0])

    def _keep(self, how: str, answer: object) -> None:
        self.printed.append((how, answer))
        caller = sys._getframe(2)  # noqa: SLF001 - a test compares it with the code
        self.printed_at.add((caller.f_code.co_filename, caller.f_lineno))


def run(line: str, make: Maker) -> tuple[RecordingShell, int]:
    """A command line without `lattice`, and its exit code; 130 if it would go on for ever."""
    arguments = shlex.split(line)
    name, location = next(
        (name, location)
        for name, _, location in sorted(COMMANDS, key=lambda each: -len(each[0]))
        if arguments[: len(name.split())] == name.split()
    )
    command = load(location)
    values = argv.read(command, arguments[len(name.split()) :])
    assert values is not None, f"{line} is no command line"
    common = {option.name for option in COMMON}
    own = {name: value for name, value in values.items() if name not in common}
    shell, code = RecordingShell(make, str(values["output"] or "json")), 130
    with suppress(KeyboardInterrupt):
        code = command.run(shell, **own)
    return shell, code


def answers() -> str:
    """By shape: the command lines that print it, then a line a field."""
    by_shape: dict[str, list[str]] = {}
    for line in LINES:
        objects = []
        for how, answer in run(line, Maker())[0].printed:
            if isinstance(answer, dict):
                objects.append(answer)
            else:
                _add(by_shape, f"lattice {line}: {how}", shape_of_value(answer))
        if objects:
            bare = [each for _, each in run(line, Maker(bare=True))[0].printed]
            objects += [each for each in bare if isinstance(each, dict)]
            _add(by_shape, f"lattice {line}: record", _shape_of_objects(objects))
    for kind in (WatchAlert, WatchEnd):
        summary = json.loads(_summary(Maker()(kind)))
        _add(by_shape, "lattice watch 1 --notify COMMAND: input", _shape_of_objects([summary]))
    return "\n\n".join("\n".join((*heads, shape)) for shape, heads in by_shape.items()) + "\n"


def _add(by_shape: dict[str, list[str]], head: str, shape: list[str]) -> None:
    heads = by_shape.setdefault("\n".join(f"  {each}" for each in shape), [])
    if head not in heads:
        heads.append(head)


def shape_of_value(answer: Any) -> list[str]:
    """A line for each field, or for each column."""
    if isinstance(answer, str):
        return answer.split(",")
    if isinstance(answer, list):
        return [*shape_of(type(answer[0]), "[]")]
    return [*shape_of(type(answer))]


def _shape_of_objects(found: list[dict[str, Any]]) -> list[str]:
    """What is made into JSON by hand has no type: its fields are those of examples."""
    names = dict.fromkeys(name for each in found for name in each)
    lines = []
    for name in names:
        values = [each[name] for each in found if name in each]
        description = dict.fromkeys(
            json.dumps(each) if name == "type" else _NAMES[type(each)] for each in values
        )
        absent = () if len(values) == len(found) else ("absent",)
        lines.append(f"{name}: {' | '.join((*description, *absent))}")
    return lines


def shape_of(kind: Any, path: str = "", above: tuple[Any, ...] = ()) -> Iterator[str]:
    """A line for each field that JSON of this type has, by its path."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        at = f"{path}.{field.name}".lstrip(".")
        description, inner, mark = _described(hints[field.name])
        yield f"{at}: {description}"
        for each in inner:
            if each in (*above, kind):
                yield f"{at}{mark}: as above"
            else:
                yield from shape_of(each, f"{at}{mark}", (*above, kind))


def _described(hint: Any) -> tuple[str, tuple[Any, ...], str]:
    """Its text; the dataclasses in it, and what stands behind the path of their fields."""
    arguments, origin = get_args(hint), get_origin(hint)
    if origin in {types.UnionType, Union}:
        found = [_described(each) for each in arguments]
        inner = tuple(each for _, many, _ in found for each in many)
        return (
            " | ".join(dict.fromkeys(description for description, _, _ in found)),
            inner,
            found[0][2],
        )
    if origin is tuple:
        description, inner, mark = _described(arguments[0])
        return f"list of {description}", inner, f"[]{mark}"
    if origin is Literal:
        return " | ".join(json.dumps(each) for each in arguments), (), ""
    if is_dataclass(hint):
        return "object", (hint,), ""
    if issubclass(hint, Enum):
        return " | ".join(json.dumps(each.value) for each in hint), (), ""
    return _NAMES[hint], (), ""
