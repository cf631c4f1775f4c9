"""Draws docs/reference/configuration.md and agent.md from the typed configurations.

scripts/reference_config.py          print them
scripts/reference_config.py --write  put them in their places
A test holds the pages fresh.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from lattice.agent.sections import AgentConfig
from lattice.base.address import Address
from lattice.base.setting import ConfigSetting, Secret, Unread, setting_of
from lattice.server.config.engine_sections import ObjectsUrl
from lattice.server.config.sections import ServerConfig

_FOLDER = Path(__file__).parents[1] / "docs" / "reference"

_HEAD = """\
# Configuration of lattice-server

Drawn from the code by `scripts/reference_config.py`; do not edit. How to go about it is in
[operate/configuration](../operate/configuration.md); a file with every option is
`config/production.yaml`.

The file is YAML. An unknown key is a problem, and so is one that stands twice. A path is absolute
or starts at the folder of the file. Where an environment variable is named, it goes before the
file. A secret can stand in a file of its own: add `_file` to the key.
"""


_AGENT_HEAD = """\
# Configuration of lattice-agent

Drawn from the code by `scripts/reference_config.py`; do not edit. A file with every option is
`config/agent.yaml`. The rules are those of the [server's](configuration.md). Flags go before the
file, and are named after its keys: `--node-id`, `--bootstrap-ca`, `--gpu-count`.
"""


def pages() -> dict[Path, str]:
    """Each page and what it should say."""
    return {_FOLDER / "configuration.md": server_page(), _FOLDER / "agent.md": agent_page()}


def agent_page() -> str:
    """The agent's: a flat list, sections and all."""
    table = ["| key | type | default | what it is |", "|---|---|---|---|"]
    return "\n".join([_AGENT_HEAD, *table, *_rows(AgentConfig, "")]) + "\n"


def server_page() -> str:
    """The server's, section by section."""
    parts = [_HEAD]
    unread: list[str] = []
    for key, kind, about in _keys(ServerConfig):
        if kind is Unread:
            unread.append(f"- `{key.name}`: {about.doc.removeprefix('Accepted, not read: ')}")
        else:
            parts.append(_section(key, kind, about))
    parts.append("\n".join(["## Sections that are accepted and not read\n", *unread]) + "\n")
    return "\n".join(parts)


def _section(key: Field[Any], kind: Any, about: ConfigSetting) -> str:
    also = f" (`{about.alias}` works too)" if about.alias else ""
    lines = [f"## `{key.name}`{also}\n", f"{about.doc}{_each(kind)}\n"]
    lines += ["| key | type | default | what it is |", "|---|---|---|---|"]
    lines += _rows(_held(kind), "")
    return "\n".join(lines) + "\n"


def _each(kind: Any) -> str:
    return " A list; each entry has:" if typing.get_origin(kind) is tuple else ""


def _rows(kind: Any, prefix: str) -> Iterator[str]:
    for key, hint, about in _keys(kind):
        name = f"{prefix}{key.name}"
        held = _held(hint)
        env = f" Environment: `{about.env}`." if about.env else ""
        doc = f"{about.doc}{_range(about)}{env}".replace("|", "\\|")
        yield f"| `{name}`{_file_form(held, name)} | {_type(hint)} | {_default(key)} | {doc} |"
        if is_dataclass(held) and not hasattr(held, "parse"):
            mark = {tuple: "[].", Mapping: ".NAME."}.get(typing.get_origin(hint), ".")
            yield from _rows(held, f"{name}{mark}")


def _keys(kind: Any) -> Iterator[tuple[Field[Any], Any, ConfigSetting]]:
    hints = typing.get_type_hints(kind)
    for key in fields(kind):
        about = setting_of(key)
        if about is not None:
            yield key, _bare(hints[key.name]), about


def _bare(kind: Any) -> Any:
    if typing.get_origin(kind) in {types.UnionType, typing.Union}:
        return next(each for each in typing.get_args(kind) if each is not types.NoneType)
    return kind


def _held(kind: Any) -> Any:
    """What a list or a map holds; any other type itself."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return arguments[0]
    return arguments[1] if typing.get_origin(kind) is Mapping else kind


def _file_form(kind: Any, name: str) -> str:
    return f", `{name}_file`" if kind is Secret else ""


def _type(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is tuple:
        return f"list of {_type(_held(kind))}"
    if origin is Mapping:
        return f"map to {_type(_held(kind))}"
    words: dict[Any, str] = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "`true` or `false`",
        Path: "path",
        Secret: "secret",
        Address: "`host:port`",
        ObjectsUrl: "URL",
    }
    if kind in words:
        return words[kind]
    if issubclass(kind, Enum):
        return ", ".join(f"`{each.value}`" for each in kind)
    return "section"


def _default(key: Field[Any]) -> str:
    if key.default_factory is MISSING:
        return "must be set"
    value = key.default_factory()
    if value is None or value in ((), {}, ""):
        return "not set"
    if is_dataclass(value) and not isinstance(value, Address):
        return ""
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _range(about: ConfigSetting) -> str:
    if about.least is None or about.most is None:
        return ""
    return f" From {about.least:g} to {about.most:.10g}."


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        for page, text in pages().items():
            page.write_text(text)
    else:
        print("\n".join(pages().values()), end="")
