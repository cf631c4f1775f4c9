"""How much an attempt wrote over time, and what of it is lost. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lattice.domain.attempts import JobAttempt

MOST_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLoss:
    """A range that was written and can't be read any more."""

    node: str
    time: float
    text: str
    """The size and the cause, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogVolume:
    """Bytes of all its streams in steps of equal length, as far as they are stored."""

    begin: float = 0.0
    """In seconds since 1970."""
    step_s: float = 1.0
    steps: tuple[float, ...] = ()
    """Bytes written in each step, up to the newest that is stored."""
    losses: tuple[LogLoss, ...] = ()
    missing: str = ""
    """Why nothing or not everything is known, as a sentence."""


LogVolumes: TypeAlias = Callable[["JobAttempt"], Awaitable[LogVolume]]
"""The volume of an attempt. Raises `Unavailable`."""
