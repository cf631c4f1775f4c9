"""When somebody had a terminal in an allocation. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpan:
    """One terminal session; `ended` is None while it is open."""

    node: str
    command: str
    """Empty: the login shell."""
    started: datetime
    ended: datetime | None


SessionSpans: TypeAlias = Callable[[str, str], Awaitable[tuple[SessionSpan, ...]]]
"""The sessions of a user in an allocation, by its unambiguous name. Raises `Unavailable`."""
