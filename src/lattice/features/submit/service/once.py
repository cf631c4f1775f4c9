"""Idempotency keys: a repeated call returns the allocation of the first.

The states of a key::

    nothing ─ claim ─► begun ─ sbatch answered ─► done (job id), for a day
                         │ sbatch refused ─► nothing
                         └ nobody knows ─► begun: the next caller looks for the job by its mark

Every commit expects the revision that was read. So of two callers one claims the key, and the other
waits for its result. The job's comment has the key's digest. A caller looks for it when a server
died between the submission and the note of it. A caller takes over a claim only if it is older than
any submission and the job does not exist.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable, UsageError
from lattice.domain.marked_job import marked_job
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import Delete, Entry, Expect, Put, StateStore
from lattice.domain.submission import Submitted, Submitter, Unsure
from lattice.features.submit.model import LONGEST_KEY

_PREFIX = "submits/"
_RETENTION = timedelta(hours=24)
_SETTLED_S = 90.0
"""Older than any submission in progress: the gate ends them sooner."""
_PAUSE_S = 0.25
_SEARCH_AGAIN_S = 1.0
_PATIENCE_S = 40.0
_SWEEP_EVERY_S = 3600.0
_MOST_SWEPT = 50

Pause = Callable[[float], Awaitable[None]]
Act = Callable[[], Awaitable[Submitted]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    question: str
    user: str
    at: float
    job_id: int = 0
    """0 while unknown."""

    def written(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def read(cls, entry: Entry) -> _Record:
        return cls(**json.loads(entry.value))


def key_digest(sub: str, key: str) -> str:
    """The digest of a caller's key, in the store and in the job's comment; empty without a key."""
    if not key:
        return ""
    if len(key) > LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise UsageError(
            "The idempotency key is not valid.",
            hint=f"At most {LONGEST_KEY} printable ASCII characters.",
        )
    content = json.dumps([sub, key]).encode()
    return hashlib.sha256(b"lattice submit 1\n" + content).hexdigest()[:32]


class _StateAway(Exception):
    """The state store did not answer, so nothing was done."""

    def __init__(self, problem: Unavailable) -> None:
        super().__init__(problem.message)
        self.problem = problem


@contextmanager
def _state_asked() -> Iterator[None]:
    try:
        yield
    except Unavailable as problem:
        raise _StateAway(problem) from problem


class Once:
    """Acts at most once for a key."""

    def __init__(self, state: StateStore, scheduler: Scheduler, clock: Clock, pause: Pause) -> None:
        self._state = state
        self._scheduler = scheduler
        self._clock = clock
        self._pause = pause
        self._swept_s = float("-inf")

    async def submit(
        self,
        digest: str,
        who: Submitter,
        question: str,
        act: Act,
        *,
        optional: bool = False,
        repeated: bool = False,
    ) -> tuple[Submitted, bool]:
        """What was submitted, and whether an earlier call did it. `question` is a digest too.

        `optional`: a new key; without the state store the act runs without it. `repeated`: such a
        key may have been used before, and then only the job's mark shows it.
        """
        try:
            return await self._claimed(digest, who, question, act, repeated=repeated)
        except _StateAway as away:
            if not optional:
                raise away.problem from None
        return await act(), False

    async def _claimed(
        self, digest: str, who: Submitter, question: str, act: Act, *, repeated: bool
    ) -> tuple[Submitted, bool]:
        with _state_asked():
            await self._sweep()
        key = _PREFIX + digest
        deadline = self._clock.monotonic() + _PATIENCE_S
        search_at, pause_s = self._clock.monotonic(), _SEARCH_AGAIN_S
        while True:
            with _state_asked():
                entry = await self._state.get(key)
            record = self._valid(entry)
            if record is not None:
                _same(record, question)
                if record.job_id:
                    return Submitted(record.job_id), True
                settled = self._now_s() - record.at >= _SETTLED_S
                if settled or self._clock.monotonic() >= search_at:
                    job_id = await self._find_job(digest, who)
                    # Look repeatedly: the gate may still finish the request of a dead server.
                    search_at, pause_s = self._clock.monotonic() + pause_s, pause_s * 2
                    if job_id:
                        return Submitted(job_id), True
                if not settled:
                    await self._wait(deadline)
                    continue
            elif repeated and (job_id := await self._find_job(digest, who)):
                return Submitted(job_id), True
            revision = entry.revision if entry is not None else 0
            claim = _Record(question=question, user=who.user, at=self._now_s())
            with _state_asked():
                claimed = await self._state.commit(
                    [Expect(key, revision)], [Put(key, claim.written())]
                )
            if claimed is not None:
                return await self._act(key, claimed, claim, act), False

    def _valid(self, entry: Entry | None) -> _Record | None:
        record = _Record.read(entry) if entry is not None else None
        return None if record is None or self._is_old(record) else record

    async def _act(self, key: str, revision: int, claim: _Record, act: Act) -> Submitted:
        try:
            submitted = await act()
        except Unsure:
            raise
        except LatticeError:
            # Nothing was submitted, so the key is free again, for the same request or another.
            with suppress(Unavailable):
                await self._state.commit([Expect(key, revision)], [Delete(key)])
            raise
        done = _Record(
            question=claim.question, user=claim.user, at=claim.at, job_id=submitted.job_id
        )
        # If this write fails, the allocation still exists; the next caller finds its mark.
        with suppress(Unavailable):
            await self._state.commit([Expect(key, revision)], [Put(key, done.written())])
        return submitted

    async def _find_job(self, digest: str, who: Submitter) -> int:
        """The id of the job with this mark, or 0. Raises `Unavailable` if Slurm does not answer."""
        try:
            since = self._clock.now() - _RETENTION
            return await marked_job(self._scheduler, who.user, digest, since)
        except Unavailable as error:
            hint = "Try again in a minute, with the same key."
            raise Unavailable(error.message, hint=hint) from None

    async def _wait(self, deadline: float) -> None:
        if self._clock.monotonic() >= deadline:
            raise Unavailable(
                "A call with the same idempotency key is still under way.",
                hint="Try again in two minutes, with the same key.",
            )
        await self._pause(_PAUSE_S)

    async def _sweep(self) -> None:
        """Delete records older than a day, at most once an hour and 50 at a time."""
        now = self._clock.monotonic()
        if now - self._swept_s < _SWEEP_EVERY_S:
            return
        self._swept_s = now
        listing = await self._state.list(_PREFIX)
        old = [each for each in listing.entries if self._is_old(_Record.read(each))]
        for each in old[:_MOST_SWEPT]:
            await self._state.commit([Expect(each.key, each.revision)], [Delete(each.key)])

    def _is_old(self, record: _Record) -> bool:
        return self._now_s() - record.at > _RETENTION.total_seconds()

    def _now_s(self) -> float:
        return self._clock.now().timestamp()


def _same(record: _Record, question: str) -> None:
    if record.question != question:
        raise UsageError(
            "This idempotency key was used for something else.", hint="Choose a new key."
        )
