"""Configuration files: YAML text into frozen dataclasses, with all problems reported at once.

The dataclasses are the schema. A field made with `setting` is a key, and its type decides how the
text is read. This module has no key names and no rules about meaning. The owner of several keys
reports problems between them into the same `ConfigReport`, so that one run shows everything.

An unreadable value is replaced by its default or a blank, so that the other rules can still be
checked. A configuration with problems is never used.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from lattice.base.errors import ConfigurationError
from lattice.base.setting import ConfigSetting, Secret, Unread, setting_of
from lattice.base.yamltree import (
    NotATree,
    below,
    blemishes,
    compose,
    is_nothing,
    line_of,
    shape_of,
    short,
)

T = TypeVar("T")

_LARGEST_FILE_BYTES = 1 << 20
_LARGEST_SECRET_BYTES = 64 << 10
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")
_BROKEN: Any = object()


class ConfigReport:
    """All problems and warnings, each with its line in the file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines: dict[str, int] = {}
        self._broken: set[str] = set()
        self._problems: list[tuple[int, str]] = []
        self._warnings: list[tuple[int, str]] = []

    @property
    def problems(self) -> tuple[str, ...]:
        """In the order of the file."""
        return tuple(text for _, text in sorted(self._problems, key=lambda each: each[0]))

    @property
    def warnings(self) -> tuple[str, ...]:
        """In the order of the file."""
        return tuple(text for _, text in sorted(self._warnings, key=lambda each: each[0]))

    def problem(self, path: str, text: str, *also: str) -> None:
        """A rule is broken at `path`. Not reported if `path` or one of `also` is unreadable."""
        if not any(self._is_broken(each) for each in (path, *also)):
            self._problems.append(self._placed(path, text))

    def warning(self, path: str, text: str) -> None:
        """Allowed, but worth a warning. Not reported if the value could not be read."""
        if not self._is_broken(path):
            self._warnings.append(self._placed(path, text))

    def unreadable(self, path: str, text: str, *, line: int | None = None, env: str = "") -> None:
        """A value that could not be read at all. Rules that depend on it are skipped."""
        self._broken.add(path)
        if env:
            self._problems.append((0, f"environment {env}: {text}"))
        else:
            self._problems.append(self._placed(path, text, line))

    def distrust(self, path: str) -> None:
        """Skip rules that depend on this path; its fault is reported elsewhere."""
        self._broken.add(path)

    def record_line(self, path: str, line: int) -> None:
        """Record the line of a key. The first one counts."""
        self._lines.setdefault(path, line)

    def _is_broken(self, path: str) -> bool:
        return any(
            path == each or path.startswith((f"{each}.", f"{each}[")) or each.startswith(f"{path}.")
            for each in self._broken
            if each
        )

    def _placed(self, path: str, text: str, line: int | None = None) -> tuple[int, str]:
        at = path
        while line is None and at:
            line = self._lines.get(at)
            at = at.rpartition(".")[0] if not at.endswith("]") else at.rpartition("[")[0]
        location = f"{self.source}:{line}" if line else self.source
        return line or 0, f"{location}: {path}: {text}" if path else f"{location}: {text}"


def load(kind: type[T], file: Path, environ: Mapping[str, str]) -> tuple[T, ConfigReport]:
    """Read the file as `kind`. Raises only if nothing can be read at all.

    The caller adds its own rules to the report. It must not use the value if there are problems.
    """
    report = ConfigReport(str(file))
    root = _tree_of(file)
    for path, line, text in blemishes(root) if root is not None else ():
        report.unreadable(path, text, line=line)
    return cast("T", _Reader(report, file.parent, environ).section(kind, root, "")), report


def refused(report: ConfigReport) -> ConfigurationError:
    """The error that carries all problems of a report."""
    return _refused(report.source, report.problems)


def _refused(source: str, problems: tuple[str, ...]) -> ConfigurationError:
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    return ConfigurationError(
        f"The configuration {source} has {count}.",
        hint="Correct what is named and try again; --check-config checks without starting.",
        problems=problems,
    )


def _tree_of(file: Path) -> Node | None:
    try:
        return compose(_text_of(file))
    except NotATree as error:
        location = f"{file}:{error.location}" if error.location else str(file)
        raise _refused(str(file), (f"{location}: {error}",)) from None


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise _refused(str(file), (f"{file}: can't be read: {error.strerror}",)) from None
    if len(raw) > _LARGEST_FILE_BYTES:
        raise _refused(str(file), (f"{file}: is larger than {_LARGEST_FILE_BYTES} bytes",))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _refused(str(file), (f"{file}:{line}: is not UTF-8 text",)) from None


class _Reader:
    """Walks nodes and types in parallel, and continues after each problem."""

    def __init__(self, report: ConfigReport, folder: Path, environ: Mapping[str, str]) -> None:
        self._report = report
        self._folder = folder
        self._environ = environ

    def section(self, kind: type[Any], node: Node | None, path: str) -> Any:
        nodes = self._members(kind, node, path)
        hints = typing.get_type_hints(kind)
        values: dict[str, Any] = {}
        for key in fields(kind):
            about = setting_of(key)
            if about is None:
                continue
            at = f"{path}.{key.name}" if path else key.name
            value = self._member(hints[key.name], about, nodes, key.name, at)
            if value is not None and value is not _BROKEN:
                values[key.name] = value
            elif key.default is MISSING and key.default_factory is MISSING:
                if value is None:
                    self._report.problem(at, "is missing")
                    self._report.distrust(at)
                values[key.name] = _blank(hints[key.name])
        return kind(**values)

    def _members(self, kind: type[Any], node: Node | None, path: str) -> dict[str, Node]:
        if node is None or is_nothing(node):
            return {}
        if not isinstance(node, MappingNode):
            self._report.unreadable(path, f"must hold keys and values, not {shape_of(node)}")
            return {}
        names = _accepted(kind)
        members: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                continue
            at = below(path, key)
            self._report.record_line(at, key.start_mark.line + 1)
            if key.value in names:
                self._take(members, names[key.value], value, at)
            elif key.value != "<<":
                self._report.unreadable(at, _unknown(key.value, names), line=line_of(key))
        return members

    def _take(self, members: dict[str, Node], name: str, value: Node, at: str) -> None:
        # Repeated keys were reported before. Two names of one key are reported here.
        if name in members and not at.endswith(name):
            self._report.unreadable(at, f"is another name of {name}, which is set too")
        members.setdefault(name, value)

    def _member(
        self, kind: Any, about: ConfigSetting, nodes: Mapping[str, Node], name: str, path: str
    ) -> Any:
        node = nodes.get(name)
        bare = _bare(kind)
        if about.env and about.env in self._environ:
            return self._scalar(bare, self._environ[about.env], about, path, env=about.env)
        if bare is Secret:
            return self._secret(node, nodes.get(f"{name}_file"), about, path)
        if is_dataclass(bare) and bare is not Unread and bare is kind and not _parses(bare):
            return self.section(cast("type[Any]", bare), node, path)
        if node is None or (is_nothing(node) and bare is not Unread):
            return None
        return self.value(bare, node, about, path)

    def value(self, kind: Any, node: Node, about: ConfigSetting, path: str) -> Any:
        kind = _bare(kind)
        if kind is Unread:
            return Unread(present=True)
        origin = typing.get_origin(kind)
        if origin is tuple:
            return self._sequence(typing.get_args(kind)[0], node, about, path)
        if origin is not None:
            return self._mapping(typing.get_args(kind)[1], node, about, path)
        if is_dataclass(kind) and not _parses(kind):
            return self.section(cast("type[Any]", kind), node, path)
        if not isinstance(node, ScalarNode):
            self._report.unreadable(path, f"must be {_wanted(kind)}, not {shape_of(node)}")
            return _BROKEN
        return self._scalar(kind, node.value, about, path, quoted=node.style in {"'", '"'})

    def _sequence(self, kind: Any, node: Node, about: ConfigSetting, path: str) -> Any:
        if not isinstance(node, SequenceNode):
            self._report.unreadable(path, f"must be a list, not {shape_of(node)}")
            return _BROKEN
        items = []
        for index, each in enumerate(node.value):
            at = f"{path}[{index}]"
            self._report.record_line(at, line_of(each))
            value = self.value(kind, each, about, at)
            # A blank keeps the index of the others, which problems name.
            items.append(_blank(kind) if value is _BROKEN else value)
        return tuple(items)

    def _mapping(self, kind: Any, node: Node, about: ConfigSetting, path: str) -> Any:
        if not isinstance(node, MappingNode):
            self._report.unreadable(path, f"must hold keys and values, not {shape_of(node)}")
            return _BROKEN
        items: dict[str, Any] = {}
        for key, each in node.value:
            at = below(path, key)
            self._report.record_line(at, line_of(key))
            value = self.value(kind, each, about, at)
            if isinstance(key, ScalarNode) and value is not _BROKEN:
                items[key.value] = value
        return items

    def _secret(self, node: Node | None, file: Node | None, about: ConfigSetting, path: str) -> Any:
        if file is None:
            # An empty secret is a mistake and not the same as none, which may switch checks off.
            return None if node is None else self.value(Secret, node, about, path)
        at = f"{path}_file"
        if node is not None:
            self._report.unreadable(at, f"can't be set together with {path.rpartition('.')[2]}")
            return _BROKEN
        found = self.value(Path, file, about, at)
        return found if found is _BROKEN else self._secret_from(found, path, at)

    def _secret_from(self, file: Path, path: str, at: str) -> Any:
        try:
            with file.open("rb") as stream:
                raw = stream.read(_LARGEST_SECRET_BYTES + 1)
            # The size first: a file that is cut may end within a character.
            text = raw.decode("utf-8") if len(raw) <= _LARGEST_SECRET_BYTES else None
        except OSError as error:
            self._report.unreadable(at, f"{file} can't be read: {error.strerror}")
        except UnicodeDecodeError:
            self._report.unreadable(at, f"{file} is not UTF-8 text")
        else:
            if text is not None:
                return Secret(text.removesuffix("\n").removesuffix("\r"))
            self._report.unreadable(at, f"{file} is larger than {_LARGEST_SECRET_BYTES} bytes")
        self._report.distrust(path)
        return _BROKEN

    def _scalar(
        self,
        kind: Any,
        text: str,
        about: ConfigSetting,
        path: str,
        *,
        env: str = "",
        quoted: bool = False,
    ) -> Any:
        try:
            value = _read(kind, text, self._folder, quoted=quoted)
            _within(value, about)
        except ValueError as error:
            self._report.unreadable(path, str(error), env=env)
            return _BROKEN
        return value


def _read(kind: Any, text: str, folder: Path, *, quoted: bool) -> Any:
    if kind is Path:
        if not text or "\0" in text:
            raise ValueError("must be a path, not nothing")
        return folder / Path(text).expanduser()
    if _parses(kind):
        return kind.parse(text)
    if kind in {str, Secret}:
        return kind(text)
    shown = f"{'the text ' if quoted else ''}{short(text)!r}"
    if issubclass(kind, Enum):
        choices = [str(each.value) for each in kind]
        if text not in choices:
            raise ValueError(f"must be {_either(choices)}, not {shown}{_nearest(text, choices)}")
        return kind(text)
    value = None if quoted else _plain(kind, text)
    if value is None:
        raise ValueError(f"must be {_wanted(kind)}, not {shown}")
    return value


def _plain(kind: Any, text: str) -> bool | int | float | None:
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    if kind is int:
        return int(text) if _WHOLE.fullmatch(text) else None
    return float(text) if _NUMBER.fullmatch(text) else None


def _within(value: Any, about: ConfigSetting) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if about.least is not None and value < about.least:
            raise ValueError(f"must be at least {about.least:g}, not {value:g}")
        if about.most is not None and value > about.most:
            raise ValueError(f"must be at most {about.most:g}, not {value:g}")


def _accepted(kind: type[Any]) -> dict[str, str]:
    """Every key that a section accepts, and the name it is kept under."""
    names: dict[str, str] = {}
    hints = typing.get_type_hints(kind)
    for key in fields(kind):
        about = setting_of(key)
        if about is None:
            continue
        names[key.name] = key.name
        if about.alias:
            names[about.alias] = key.name
        if _bare(hints[key.name]) is Secret:
            names[f"{key.name}_file"] = f"{key.name}_file"
    return names


def _bare(kind: Any) -> Any:
    """The type without `| None`."""
    if typing.get_origin(kind) in {types.UnionType, typing.Union}:
        return next(each for each in typing.get_args(kind) if each is not types.NoneType)
    return kind


def _blank(kind: Any) -> Any:
    """A value of the type as a placeholder. The report marks its place as unreadable."""
    kind = _bare(kind)
    return next(iter(kind)) if issubclass(kind, Enum) else kind()


def _parses(kind: Any) -> bool:
    return hasattr(kind, "parse")


def _wanted(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}
    return names.get(kind, "text")


def _either(choices: Sequence[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)


def _nearest(text: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - needed only for mistakes

    near = get_close_matches(text, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _unknown(name: str, known: Mapping[str, str]) -> str:
    return f"is not known here{_nearest(name, list(known))}"
