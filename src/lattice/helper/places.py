"""Who is being answered, and who may still be: places for children, and those that hang. Pure.

A child that waits for a dead share, or for a process that holds its readers, may not even be
killed. It keeps no place of others, but the job and the user it waits for get few such, and so do
all users together. Where a place is wanted back after `slow_s`, one that takes longer than that
has a place among those that hang, long before it is killed.

Beside a server each verb has places of its own, and a user only some of them: whoever has a slow
profile holds up nobody's work but his own.
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice.helper.journal import Peer
from lattice.helper.judge import Asked

_MOST_HANGING = 32
_MOST_HANGING_A_USER = 2
_MOST_HANGING_A_JOB = 2
_MOST_SLOW_A_JOB, _MOST_SLOW_A_USER = 4, 8


@dataclass(slots=True)
class Child:
    """One question under way."""

    asked: Asked
    peer: Peer
    until: float
    hangs: bool = False
    slow: bool = False
    """It takes long, and may still answer."""

    @property
    def aside(self) -> bool:
        """It keeps no place of others."""
        return self.hangs or self.slow


@dataclass(frozen=True, slots=True)
class Share:
    """How many questions of one verb are answered at once: in all, and for one user."""

    most_at_once: int
    most_a_user: int


class Places:
    """By the child's pid."""

    def __init__(
        self, most_at_once: int, most_a_user: int | None = None, *, slow_s: float | None = None
    ) -> None:
        """With `most_a_user` one user can't have more of them."""
        self._most_at_once = most_at_once
        self._most_a_user = most_a_user
        self._slow_s = slow_s
        self._children: dict[int, Child] = {}
        self._slow_at: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._children)

    def take(self, pid: int, child: Child, now: float = 0.0) -> None:
        self._children[pid] = child
        if self._slow_s is not None:
            self._slow_at[pid] = now + self._slow_s

    def leave(self, pid: int) -> Child:
        self._slow_at.pop(pid, None)
        return self._children.pop(pid)

    def pids(self) -> list[int]:
        return list(self._children)

    @property
    def answering(self) -> int:
        """How many are under way that will answer soon."""
        return sum(not child.aside for child in self._children.values())

    @property
    def full(self) -> bool:
        """Nobody else can be answered now."""
        hanging = sum(child.aside for child in self._children.values())
        return hanging >= _MOST_HANGING or len(self._children) - hanging >= self._most_at_once

    def has_room_for(self, user: str) -> bool:
        """One more question of this user can be answered now."""
        return not self.full and not self.are_used_up_by(user)

    def are_used_up_by(self, user: str) -> bool:
        """This user has as many as one user may."""
        if self._most_a_user is None:
            return False
        running = [each for each in self._children.values() if not each.aside]
        return sum(each.asked.user == user for each in running) >= self._most_a_user

    def hangs_for(self, user: str, job_id: int = 0) -> bool:
        """Enough questions of this user, or of this job, hang already; "" and 0 are nobody's."""
        mine = [each for each in self._children.values() if user and each.asked.user == user]
        of_job = [
            each for each in self._children.values() if job_id and each.asked.job_id == job_id
        ]
        return (
            sum(each.hangs for each in mine) >= _MOST_HANGING_A_USER
            or sum(each.aside for each in mine) >= _MOST_SLOW_A_USER
            or sum(each.hangs for each in of_job) >= _MOST_HANGING_A_JOB
            or sum(each.aside for each in of_job) >= _MOST_SLOW_A_JOB
        )

    def oldest(self) -> int | None:
        """The one that has been there for longest, of those that keep a place."""
        return next((pid for pid, child in self._children.items() if not child.aside), None)

    def put_aside(self, pid: int) -> None:
        """It was killed, and is not waited for."""
        self._children[pid].hangs = True

    def overdue(self, now: float) -> list[tuple[int, Child]]:
        """Those that just ran out of time, each once. Slow ones are put aside."""
        for pid in [pid for pid, at in self._slow_at.items() if at < now]:
            del self._slow_at[pid]
            self._children[pid].slow = True
        late = [
            (pid, child)
            for pid, child in self._children.items()
            if child.until < now and not child.hangs
        ]
        for _, child in late:
            child.hangs = True
        return late
