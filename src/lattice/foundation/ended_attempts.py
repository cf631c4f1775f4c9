"""Attempts that have ended, and when this server writes a document about each.

Every server sees which attempts end. A hash of the document's key assigns each attempt to one
server; the others try a little later, in case it is down. Two writers do no harm if the document is
put only if absent. Attempts that nobody wrote about are found again in slurmdbd.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from itertools import takewhile

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.allocation import Allocation
from lattice.domain.allocation_index import ChangeCursor
from lattice.domain.attempts import JobAttempt, attempts_of, named
from lattice.domain.objects import BadKeyPart
from lattice.domain.scheduler import PastQuestion, Scheduler, Scope

OTHERS_AFTER_S = 300.0
"""Extra delay for an attempt that is assigned to another server."""
REMEMBERED = timedelta(hours=24)
"""How far back slurmdbd is searched."""
_PAST_EVERY_S = 6 * 3600.0
_AGAIN_S = 60.0
_A_ROUND = 20
"""Most attempts in one round."""
_MOST_WAITING = 50_000
_EVERYTHING = Scope(everything=True)


class EndedAttemptQueue:
    """`replicas` returns the ids of running servers; `replica` is this one."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock,
        key_of: Callable[[JobAttempt], str],
        settle_s: float,
        replica: str = "",
        replicas: Callable[[], Collection[str]] = tuple,
        is_sensitive: Callable[[Allocation], bool] = lambda _: False,
    ) -> None:
        """`key_of` raises `BadKeyPart`. An attempt is due `settle_s` after its end."""
        self._scheduler = scheduler
        self._clock = clock
        self._key_of = key_of
        self._settle_s = settle_s
        self._replica = replica
        self._replicas = replicas
        self._is_sensitive = is_sensitive
        self._due: dict[str, tuple[float, JobAttempt]] = {}
        self._done: dict[str, float] = {}
        self._past_s: float | None = None
        self._cursor = ChangeCursor()
        self._postponed: dict[int, Allocation] = {}
        """Allocations to register again, by identity."""

    @property
    def waiting(self) -> int:
        """Ended attempts without a document, as far as this server knows."""
        return len(self._due)

    async def due(self) -> tuple[JobAttempt, ...]:
        """Register attempts that have ended; return those whose turn it is. Raises `Unavailable`.

        Each of them comes again after a minute until it is `done`.
        """
        self._note_live()
        now_s = self._clock.monotonic()
        if self._past_s is None or now_s - self._past_s > _PAST_EVERY_S:
            since = self._clock.now() - REMEMBERED
            self._note(await self._scheduler.past(PastQuestion(scope=_EVERYTHING, since=since)))
            self._past_s = now_s
        now = self._clock.now().timestamp()
        self._forget()
        keys = sorted(key for key, (at, _) in self._due.items() if at <= now)[:_A_ROUND]
        found = tuple(self._due[key][1] for key in keys)
        for key in keys:
            # Postpone first: a failure is retried later, not at once.
            self._due[key] = (now + _AGAIN_S, self._due[key][1])
        return found

    def done(self, attempt: JobAttempt) -> None:
        """A document about it is stored, by any server."""
        key = self._key_of(attempt)
        self._due.pop(key, None)
        # The order of the keys is that of the times.
        self._done.pop(key, None)
        self._done[key] = self._clock.now().timestamp()

    def is_mine(self, key: str) -> bool:
        """Whether the attempt with this key is assigned to this server."""
        replicas = set(self._replicas()) | {self._replica}
        return max(sorted(replicas), key=lambda each: _weight(each, key)) == self._replica

    def _note_live(self) -> None:
        change = self._cursor.changes(self._scheduler.live().cluster.index)
        for each in change.gone:
            self._postponed.pop(id(each), None)
        self._postponed.update((id(each), each) for each in change.added)
        left = self._note(self._postponed.values())
        self._postponed = {id(each): each for each in left}

    def _note(self, allocations: Iterable[Allocation]) -> list[Allocation]:
        """Register attempts that have ended; returns allocations that have to come again."""
        oldest = self._clock.now() - REMEMBERED
        left = []
        for each in allocations:
            if self._is_sensitive(each):
                # Nothing of sensitive work is stored.
                continue
            ended = [
                JobAttempt(each, attempt)
                for attempt in attempts_of(each)
                if attempt.started is not None and attempt.ended and attempt.ended >= oldest
            ]
            if not all(map(self._note_one, ended)):
                left.append(each)
        return left

    def _note_one(self, found: JobAttempt) -> bool:
        """False if it can't be registered yet."""
        accounts, ended = self._scheduler.live().cluster.accounts, found.attempt.ended
        assert ended is not None
        try:
            key = self._key_of(named(found.allocation, found.attempt, accounts, self._clock.now()))
        except BadKeyPart:
            return True
        except LatticeError:
            return False  # its tenant is not known yet
        if key in self._due or key in self._done:
            return True
        if len(self._due) >= _MOST_WAITING:
            return False
        later_s = 0.0 if self.is_mine(key) else OTHERS_AFTER_S
        self._due[key] = (ended.timestamp() + self._settle_s + later_s, found)
        return True

    def _forget(self) -> None:
        before = self._clock.now() - 2 * REMEMBERED
        oldest = before.timestamp()
        for key in list(takewhile(lambda each: self._done[each] < oldest, self._done)):
            del self._done[key]
        for key, (_, attempt) in tuple(self._due.items()):
            ended = attempt.attempt.ended
            if ended is not None and ended < before:
                del self._due[key]


def _weight(replica: str, key: str) -> bytes:
    return hashlib.sha256(f"{replica}\0{key}".encode()).digest()
