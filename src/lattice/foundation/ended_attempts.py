"""Attempts that have ended, and when this server writes a document about each.

Every server sees which attempts end. A hash of the document's key assigns each attempt to one
server; the others try a little later, in case it is down. Two writers do no harm if the document is
put only if absent. Attempts that nobody wrote about are found again in slurmdbd.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.allocation import Allocation
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

    @property
    def waiting(self) -> int:
        """Ended attempts without a document, as far as this server knows."""
        return len(self._due)

    async def due(self) -> tuple[JobAttempt, ...]:
        """Register attempts that have ended; return those whose turn it is. Raises `Unavailable`.

        Each of them comes again after a minute until it is `done`.
        """
        self._note(self._scheduler.live().cluster.allocations)
        now_s = self._clock.monotonic()
        if self._past_s is None or now_s - self._past_s > _PAST_EVERY_S:
            since = self._clock.now() - REMEMBERED
            self._note(await self._scheduler.past(PastQuestion(scope=_EVERYTHING, since=since)))
            self._past_s = now_s
        now = self._clock.now().timestamp()
        self._forget(now)
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
        self._done[key] = self._clock.now().timestamp()

    def is_mine(self, key: str) -> bool:
        """Whether the attempt with this key is assigned to this server."""
        replicas = set(self._replicas()) | {self._replica}
        return max(sorted(replicas), key=lambda each: _weight(each, key)) == self._replica

    def _note(self, allocations: Iterable[Allocation]) -> None:
        oldest = self._clock.now() - REMEMBERED
        for each in allocations:
            if self._is_sensitive(each):
                # Nothing of sensitive work is stored.
                continue
            for attempt in attempts_of(each):
                if attempt.started is None or attempt.ended is None or attempt.ended < oldest:
                    continue
                self._note_one(each, JobAttempt(each, attempt), attempt.ended.timestamp())

    def _note_one(self, allocation: Allocation, found: JobAttempt, ended: float) -> None:
        try:
            accounts = self._scheduler.live().cluster.accounts
            key = self._key_of(named(allocation, found.attempt, accounts, self._clock.now()))
        except (LatticeError, BadKeyPart):
            return  # the tenant is known in the next round, or the name can't be a key
        if key in self._due or key in self._done or len(self._due) >= _MOST_WAITING:
            return
        later_s = 0.0 if self.is_mine(key) else OTHERS_AFTER_S
        self._due[key] = (ended + self._settle_s + later_s, found)

    def _forget(self, now: float) -> None:
        oldest = now - 2 * REMEMBERED.total_seconds()
        for key in [each for each, at in self._done.items() if at < oldest]:
            del self._done[key]
        for key, (_, attempt) in tuple(self._due.items()):
            ended = attempt.attempt.ended
            if ended is not None and ended.timestamp() < oldest:
                del self._due[key]


def _weight(replica: str, key: str) -> bytes:
    return hashlib.sha256(f"{replica}\0{key}".encode()).digest()
