"""Who is being answered, and who may still be: places for children, and those that hang. Pure.

A child that waits for a dead share may not even be killed. It keeps no place of others, but the
user it waits for gets few such, and so do all users together.

Beside a server each verb has places of its own, and a user only some of them: whoever has a slow
profile holds up nobody's work but his own.
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice.helper.journal import Peer
from lattice.helper.judge import Asked

_MOST_HANGING = 32
_MOST_HANGING_A_USER = 2


@dataclass(slots=True)
class Child:
    """One question under way."""

    asked: Asked
    peer: Peer
    until: float
    hangs: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """How many questions of one verb are answered at once: in all, and for one user."""

    most_at_once: int
    most_a_user: int


class Places:
    """By the child's pid."""

    def __init__(self, most_at_once: int, most_a_user: int | None = None) -> None:
        """With `most_a_user` one user can't have more of them."""
        self._most_at_once = most_at_once
        self._most_a_user = most_a_user
        self._children: dict[int, Child] = {}

    def __len__(self) -> int:
        return len(self._children)

    def take(self, pid: int, child: Child) -> None:
        self._children[pid] = child

    def leave(self, pid: int) -> Child:
        return self._children.pop(pid)

    def pids(self) -> list[int]:
        return list(self._children)

    @property
    def full(self) -> bool:
        """Nobody else can be answered now."""
        hanging = sum(child.hangs for child in self._children.values())
        return hanging >= _MOST_HANGING or len(self._children) - hanging >= self._most_at_once

    def has_room_for(self, user: str) -> bool:
        """One more question of this user can be answered now."""
        return not self.full and not self.are_used_up_by(user)

    def are_used_up_by(self, user: str) -> bool:
        """This user has as many as one user may."""
        if self._most_a_user is None:
            return False
        running = [each for each in self._children.values() if not each.hangs]
        return sum(each.asked.user == user for each in running) >= self._most_a_user

    def hangs_for(self, user: str) -> bool:
        """Enough questions of this user hang already."""
        hanging = [each for each in self._children.values() if each.hangs]
        return sum(each.asked.user == user for each in hanging) >= _MOST_HANGING_A_USER

    def overdue(self, now: float) -> list[tuple[int, Child]]:
        """Those that just ran out of time, each once."""
        late = [
            (pid, child)
            for pid, child in self._children.items()
            if child.until < now and not child.hangs
        ]
        for _, child in late:
            child.hangs = True
        return late
