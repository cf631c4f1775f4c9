"""The words a configuration is declared with: keys of dataclasses, secrets, sections left unread.

Only the declaration. `lattice.base.config` reads files into what is declared here, and the
reference page is drawn from it.
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
    """A section that is accepted and not looked into; `present` tells that it was there."""

    present: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """What a key is, for the reader and for the reference page."""

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
    made = Setting(doc, env, alias, least, most)
    # A factory, because dataclasses refuse a mapping as a plain default.
    made_field: T = field(default_factory=lambda: default, metadata={"setting": made})
    return made_field


def required(doc: str) -> Any:
    """A key without which its section or entry makes no sense."""
    return field(metadata={"setting": Setting(doc)})


def setting_of(key: Field[Any]) -> Setting | None:
    """What was said of a field, or None for one that is no key."""
    return key.metadata.get("setting")
