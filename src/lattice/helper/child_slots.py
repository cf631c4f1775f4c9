"""Slots for the children that answer requests, and limits for children that hang. Pure.

A child that waits for a dead file share, or for a process that blocks its readers, may not even be
killable. Such a child takes no normal slot. But a job, a user and the helper as a whole may have
only a few of them. With `slow_s`, a child that takes longer counts as slow and frees its slot, long
before it is killed.

Beside a server each verb has its own slots, and a user may take only some of them. So a user with a
slow profile delays no one else.
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice.helper.journal import Peer
from lattice.helper.judge import AskedGrant

_MOST_HANGING = 32
_MOST_HANGING_A_USER = 2
_MOST_HANGING_A_JOB = 2
_MOST_SLOW_A_JOB, _MOST_SLOW_A_USER = 4, 8


@dataclass(slots=True)
class Child:
    """One request that is being answered."""

    asked: AskedGrant
    peer: Peer
    until: float
    hangs: bool = False
    slow: bool = False
    """It takes long and may still answer."""

    @property
    def aside(self) -> bool:
        """Whether it takes no normal slot."""
        return self.hangs or self.slow


@dataclass(frozen=True, slots=True)
class SlotShare:
    """How many requests of one verb are answered at once: in all, and for one user."""

    most_at_once: int
    most_a_user: int


class ChildSlots:
    """The running children, by pid."""

    def __init__(
        self, most_at_once: int, most_a_user: int | None = None, *, slow_s: float | None = None
    ) -> None:
        """`most_a_user` limits the slots of one user; None: no limit."""
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
        """How many children take a normal slot."""
        return sum(not child.aside for child in self._children.values())

    @property
    def full(self) -> bool:
        """Whether no further request can be answered now."""
        hanging = sum(child.aside for child in self._children.values())
        return hanging >= _MOST_HANGING or len(self._children) - hanging >= self._most_at_once

    def has_room_for(self, user: str) -> bool:
        """Whether one more request of this user can be answered now."""
        return not self.full and not self.are_used_up_by(user)

    def are_used_up_by(self, user: str) -> bool:
        """Whether this user has as many slots as one user may."""
        if self._most_a_user is None:
            return False
        running = [each for each in self._children.values() if not each.aside]
        return sum(each.asked.user == user for each in running) >= self._most_a_user

    def hangs_for(self, user: str, job_id: int = 0) -> bool:
        """Whether too many requests of this user or job hang; "" and 0 match nothing."""
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
        """The pid of the oldest child that takes a normal slot."""
        return next((pid for pid, child in self._children.items() if not child.aside), None)

    def put_aside(self, pid: int) -> None:
        """Mark a child that was killed; its end is not awaited."""
        self._children[pid].hangs = True

    def overdue(self, now: float) -> list[tuple[int, Child]]:
        """The children that just ran out of time, each once. Also marks the slow ones."""
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
