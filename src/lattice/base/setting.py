"""Declares a configuration: keys of dataclasses, secrets, sections that are not read.

`lattice.base.config` reads files into these declarations, and the reference page is generated from
them.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


class Secret:
    """Text that is never shown: not by `repr`, not in a problem, not in a log."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one place that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(("Secret", self._text))


@dataclass(frozen=True, slots=True)
class Unread:
    """A section that is accepted but not parsed; `present` is True if the file has it."""

    present: bool = False


@dataclass(frozen=True, slots=True)
class ConfigSetting:
    """The declaration of a key, for the parser and for the reference page."""

    doc: str
    env: str = ""
    alias: str = ""
    least: float | None = None
    most: float | None = None


def setting(
    default: T,
    doc: str,
    *,
    env: str = "",
    alias: str = "",
    least: float | None = None,
    most: float | None = None,
) -> T:
    """A key with a default. `env` names a variable that overrides the file."""
    made = ConfigSetting(doc, env, alias, least, most)
    # A factory, because dataclasses refuse a mutable mapping as a default.
    made_field: T = field(default_factory=lambda: default, metadata={"setting": made})
    return made_field


def required(doc: str) -> Any:
    """A key that its section or entry must have."""
    return field(metadata={"setting": ConfigSetting(doc)})


def setting_of(key: Field[Any]) -> ConfigSetting | None:
    """The declaration of a field, or None if the field is no key."""
    return key.metadata.get("setting")
