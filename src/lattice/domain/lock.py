"""A lock: a user, a node, a terminal session or everything is banned from Lattice. Pure.

It limits the use of Lattice, not Slurm: jobs run on, and their output is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol


class LockKind(StrEnum):
    USER = "user"
    NODE = "node"
    SESSION = "session"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """One lock. There is at most one for each kind and target."""

    kind: LockKind
    target: str = ""
    """A user's name or subject, a node, or a terminal session; empty for all."""
    reason: str
    by: str
    """The subject of the actor that made the lock."""
    since: datetime
    until: datetime | None = None
    """None: until it is removed."""

    def holds(self, now: datetime) -> bool:
        """True unless it has ended."""
        return self.until is None or now < self.until

    @property
    def name(self) -> str:
        """As a person writes it after `lattice admin unlock`."""
        return f"{self.kind.value} {self.target}".rstrip()


class Locks(Protocol):
    """The locks in force, as this replica last read them."""

    @property
    def current(self) -> bool:
        """False if the state store has not confirmed them for some seconds."""

    def of_user(self, *names: str) -> Lock | None:
        """The lock of everything, or of a user with one of these names or subjects."""

    def of_node(self, node: str) -> Lock | None:
        """The lock of this node."""

    def of_session(self, session: str) -> Lock | None:
        """The lock of this terminal."""


class NoLocks:
    """For a server without a state store, where nothing can be locked."""

    current = True

    def of_user(self, *names: str) -> Lock | None:
        del names
        return None

    def of_node(self, node: str) -> Lock | None:
        del node
        return None

    def of_session(self, session: str) -> Lock | None:
        del session
        return None


def in_force(locks: Iterable[Lock], now: datetime) -> tuple[Lock, ...]:
    """Those that have not ended, sorted by name."""
    return tuple(sorted((each for each in locks if each.holds(now)), key=lambda each: each.name))
