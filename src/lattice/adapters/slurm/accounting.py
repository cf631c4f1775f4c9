"""Requests to slurmdbd, few and shared.

A request takes slurmdbd a third of a second or more. So at most four run at once, and equal
requests of several callers are sent once. An answer is reused for 5 s, or for five times as long as
it took. A caller may leave earlier; the request continues for the next caller. After a request
without an answer, callers wait 3 s at most until one is answered.

slurmdbd's filters only make answers shorter. The result is checked against the scope again, by
owner and account, because 22.05 is known to ignore a filter by user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lattice.adapters.slurm.accounts import Associations
from lattice.adapters.slurm.answer import SlurmRefused, checked, read_answer
from lattice.adapters.slurm.attempts import RESTARTED, fold, newest_first
from lattice.adapters.slurm.dialect import Dialect, Dialects
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.schema import PastRow
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, Reference
from lattice.domain.scheduler import PastQuestion, Scope

_Params = tuple[tuple[str, str], ...]

_TIMEOUT_S = 20.0
_LIMIT_BYTES = 256 * 1024 * 1024
_FLAGS = ("skip_steps", "show_duplicates", "disable_truncate_usage_time")
_IN_FLIGHT = 4
_WAITING = 256
_FRESH_S = 5.0
_FRESH_SHARE = 5
_SILENT_PATIENCE_S = 3.0
_REMEMBERED_ROWS = 200_000
_IN_LOOP_BYTES = 256 * 1024
_NAMES_IN_A_FILTER = 500
_REPEATED = ("step", "users")
_IDS_A_QUESTION = 200
_WHOLE_STORIES = 2_000
_BEFORE = timedelta(minutes=10)
_NOT_FOUND = 404
_LEAST_UTS = 1_000_000  # below this Slurm interprets the number differently


@dataclass(frozen=True, slots=True)
class _Remembered:
    until: float
    rows: tuple[PastRow, ...]


class PastReader:
    """Requests rows from slurmdbd through slurmrestd and folds them into allocations."""

    def __init__(self, rest: SlurmRest, dialects: Dialects, clock: Clock) -> None:
        self.questions_total = 0
        self._rest = rest
        self._dialects = dialects
        self._clock = clock
        self._in_flight = asyncio.Semaphore(_IN_FLIGHT)
        self._silent = False
        """True after a request without an answer."""
        self._running: dict[_Params, asyncio.Task[tuple[PastRow, ...]]] = {}
        self._remembered: dict[_Params, _Remembered] = {}

    async def ask(
        self, question: PastQuestion, placing: Placing, associations: Associations
    ) -> tuple[Allocation, ...]:
        """The allocations within the scope, newest first. Raises `Unavailable`."""
        scope = question.scope
        if not (scope.everything or scope.users or scope.accounts):
            return ()
        if question.reference is not None:
            name = _by_name(question.reference)
            found = fold(await self._within(scope, name, placing, associations))
        else:
            found = await self._stretch(question, placing, associations)
        return tuple(each for each in found if scope.covers(each) and _asked_for(question, each))

    async def stories(self, job_ids: Iterable[int], placing: Placing) -> list[PastRow]:
        """Every row of these jobs, of any time."""
        ids = sorted(set(job_ids))
        parts = [ids[at : at + _IDS_A_QUESTION] for at in range(0, len(ids), _IDS_A_QUESTION)]
        asked = (self._rows({"step": ",".join(map(str, part))}, placing) for part in parts)
        return [row for rows in await asyncio.gather(*asked) for row in rows]

    async def aclose(self) -> None:
        """Cancel running requests."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stretch(
        self, question: PastQuestion, placing: Placing, associations: Associations
    ) -> tuple[Allocation, ...]:
        rows = await self._within(question.scope, _window(question), placing, associations)
        has_restarts = any(row.restarts is not None for row in rows)
        found = [each for each in fold(rows) if question.scope.covers(each)]
        open_ids = {each.job_id for each in found if _open_story(each, question, has_restarts)}
        return await self._completed(found, open_ids, placing)

    async def _within(
        self, scope: Scope, asked: dict[str, str], placing: Placing, associations: Associations
    ) -> list[PastRow]:
        # The scope is in the request even if it is for one name. A row that is found takes slurmdbd
        # three times as long as none, and the time would reveal it.
        by_user = (await self._dialects.past()).offers("jobs", "users")
        filters = _filters(scope, associations, by_user)
        parts = await asyncio.gather(*(self._filtered(asked, each, placing) for each in filters))
        return [row for part in parts for row in part]

    async def _filtered(
        self, asked: dict[str, str], chosen: dict[str, str], placing: Placing
    ) -> tuple[PastRow, ...]:
        try:
            return await self._rows({**asked, **chosen}, placing)
        except SlurmRefused:
            # If slurmrestd's host does not have the user, the filter is an error, not an empty
            # answer.
            if "users" not in chosen:
                raise
        return await self._rows(asked, placing)

    async def _completed(
        self, found: list[Allocation], open_ids: set[int], placing: Placing
    ) -> tuple[Allocation, ...]:
        # Runs outside the period are fetched too. Otherwise an allocation that was requeued across
        # its edge would get another first submit time, and with it another name.
        chosen = set(sorted(open_ids, reverse=True)[:_WHOLE_STORIES])
        whole = fold(await self.stories(chosen, placing)) if chosen else ()
        remaining = [
            replace(each, first_submitted=None) if each.job_id in open_ids else each
            for each in found
            if each.job_id not in chosen
        ]
        known = {(each.id, each.submitted) for each in found}
        # The complete rows may include other uses of the job id, which were not requested.
        again = [each for each in whole if _touches(each, known)]
        return newest_first(remaining + again)

    async def _rows(self, params: Mapping[str, str], placing: Placing) -> tuple[PastRow, ...]:
        key = (*sorted(params.items()), ("cluster", placing.cluster))
        remembered = self._remembered.get(key)
        if remembered and self._clock.monotonic() < remembered.until:
            return remembered.rows
        task = self._running.get(key)
        if task is None:
            if len(self._running) >= _WAITING:
                raise Unavailable(
                    "too many questions about the past are waiting", hint="Try again in a moment."
                )
            task = asyncio.create_task(self._fetch(key, placing), name="slurmdbd question")
            self._running[key] = task
            task.add_done_callback(lambda done: self._settled(key, done))
        # If one caller is cancelled, the others still get the answer.
        try:
            async with asyncio.timeout(_SILENT_PATIENCE_S if self._silent else None):
                return await asyncio.shield(task)
        except TimeoutError:
            raise Unavailable("slurmdbd does not answer", hint="Try again in a minute.") from None
        except asyncio.CancelledError:
            if task.cancelled():
                raise Unavailable("the server is stopping") from None
            raise

    async def _fetch(self, key: _Params, placing: Placing) -> tuple[PastRow, ...]:
        async with self._in_flight:
            self.questions_total += 1
            begun = self._clock.monotonic()
            try:
                dialect = await self._dialects.past()
                path = dialect.path("jobs")
                flags = {flag: "true" for flag in _FLAGS if dialect.offers("jobs", flag)}
                reply = await self._rest.get(
                    path,
                    {**_written(key, dialect), **flags},
                    timeout_s=_TIMEOUT_S,
                    limit_bytes=_LIMIT_BYTES,
                )
            except Unavailable:
                self._silent = True
                raise
            self._silent = False
            if reply.status == _NOT_FOUND:
                self._dialects.forget()

            def work() -> tuple[PastRow, ...]:
                answer = checked(read_answer(reply.body, "jobs"), reply.status, path)
                rows = (dialect.schema.past_job(raw, placing) for raw in answer.records)
                return tuple(row for row in rows if row is not None)

            large = len(reply.body) > _IN_LOOP_BYTES
            rows = await asyncio.to_thread(work) if large else work()
        return self._remember(key, rows, self._clock.monotonic() - begun)

    def _settled(self, key: _Params, done: asyncio.Task[tuple[PastRow, ...]]) -> None:
        self._running.pop(key, None)
        if not done.cancelled():
            done.exception()  # retrieved here, since every caller may be gone

    def _remember(
        self, key: _Params, rows: tuple[PastRow, ...], cost_s: float
    ) -> tuple[PastRow, ...]:
        now = self._clock.monotonic()
        self._remembered = {
            each: found for each, found in self._remembered.items() if now < found.until
        }
        held = sum(len(found.rows) for found in self._remembered.values())
        if held + len(rows) <= _REMEMBERED_ROWS:
            self._remembered[key] = _Remembered(now + max(_FRESH_S, _FRESH_SHARE * cost_s), rows)
        return rows


def _written(key: _Params, dialect: Dialect) -> dict[str, str | list[str]]:
    # From v0.0.40 on a list in one of these is refused; before, only the last of several counts.
    repeated = _REPEATED if dialect.is_at_least("v0.0.40") else ()
    return {
        name: value.split(",") if name in repeated and "," in value else value
        for name, value in key
    }


def _by_name(reference: Reference) -> dict[str, str]:
    # Slurm stores a het component under its leader's id, so request the leader.
    task = "" if reference.task_id is None else f"_{reference.task_id}"
    return {"step": f"{reference.job_id}{task}"}


def _window(question: PastQuestion) -> dict[str, str]:
    # `uts` and seconds is the only time format that does not depend on slurmrestd's time zone. Ten
    # extra minutes at the start include the run before a requeue at the edge. Whole minutes make
    # the requests of one minute equal.
    window: dict[str, str] = {}
    if question.since is not None:
        window["start_time"] = _uts(question.since - _BEFORE)
    if question.until is not None:
        window["end_time"] = _uts(question.until + timedelta(minutes=1))
    return window


def _uts(moment: datetime) -> str:
    minutes = int(moment.timestamp()) // 60
    return f"uts{max(_LEAST_UTS, minutes * 60)}"


def _filters(scope: Scope, associations: Associations, by_user: bool) -> list[dict[str, str]]:
    # Several shorter requests, or one for everything if a filter is not possible.
    if scope.everything:
        return [{}]
    filters: list[dict[str, str]] = []
    if scope.users:
        ids = associations.of(scope.users)
        if by_user and len(scope.users) <= _NAMES_IN_A_FILTER:
            filters.append({"users": ",".join(sorted(scope.users))})
        elif ids and len(ids) <= _NAMES_IN_A_FILTER:
            filters.append({"association": ",".join(map(str, ids))})
        else:
            return [{}]
    if scope.accounts:
        if len(scope.accounts) > _NAMES_IN_A_FILTER:
            return [{}]
        filters.append({"account": ",".join(sorted(scope.accounts))})
    return filters


def _open_story(found: Allocation, question: PastQuestion, has_restarts: bool) -> bool:
    """True if runs of this allocation may be outside the requested period."""
    # slurmdbd omits rows from a period until they are eligible. So the run after a requeue is
    # missing even if it is inside.
    first = found.first_submitted
    if first is None or found.state in RESTARTED:
        return True
    return not has_restarts and question.since is not None and first < question.since


def _touches(each: Allocation, known: set[tuple[str, datetime]]) -> bool:
    runs = (each.submitted, *(attempt.submitted for attempt in each.attempts))
    return any((each.id, run) in known for run in runs)


def _asked_for(question: PastQuestion, found: Allocation) -> bool:
    if question.reference is not None and not question.reference.matches(found):
        return False
    if question.states and found.state not in question.states:
        return False
    if question.reference is not None:
        return True
    if question.since is not None and found.ended is not None and found.ended < question.since:
        return False
    return question.until is None or (found.first_submitted or found.submitted) <= question.until
