"""The members of the store behind the agreed state, as they report themselves. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumMember:
    """One member of etcd. With a `reason` it does not answer, or reports an alarm."""

    name: str
    """Its address, as the server calls it."""
    etcd_name: str = ""
    """Its own name; empty if etcd did not report it."""
    id: str = ""
    """Hexadecimal, as etcd's own tools show it."""
    reason: str = ""
    answers: bool = True
    version: str = ""
    size_bytes: int = 0
    """Of its database."""
    in_use_bytes: int = 0
    """Without the space that a defragmentation would free."""
    is_leader: bool = False
    has_leader: bool = False
    is_learner: bool = False
    """It does not vote."""
    term: int = 0
    index: int = 0
    """The last entry in its Raft log."""
    applied: int = 0
    """The last entry in its database."""


MembersOf: TypeAlias = Callable[[float], Awaitable[tuple[QuorumMember, ...]]]
"""Asks all members at the same time, and waits so many seconds for each."""


def majority(members: int) -> int:
    """How many of the members must agree."""
    return members // 2 + 1
