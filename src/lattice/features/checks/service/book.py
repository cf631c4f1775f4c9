"""The results of checks in the agreed state. Several servers may write; each write is fenced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from lattice.base.errors import Unavailable
from lattice.domain.node_check import (
    BEGUN,
    JOBS,
    RESULTS,
    WARNINGS,
    BadCheck,
    CheckJob,
    NodeCheck,
    read_check_job,
    read_results,
    warning_of,
    with_result,
    written_check,
)
from lattice.domain.state import Change, Delete, Entry, Expect, Put, StateStore

_log = logging.getLogger(__name__)
_TRIES = 8
_T = TypeVar("_T")


class CheckBook:
    """Checks under way, results by node, and the warnings of the newest results."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._warnings: Mapping[str, str] = {}

    def warnings(self) -> Mapping[str, str]:
        """By node, as last read."""
        return self._warnings

    async def refresh(self) -> None:
        """Read the warnings again."""
        listing = await self._state.list(WARNINGS)
        self._warnings = {
            each.key.removeprefix(WARNINGS): each.value.decode("utf-8", "replace")
            for each in listing.entries
        }

    async def begin(self, mark: str, job: CheckJob) -> None:
        """A check that is about to be submitted as a job with this mark."""
        await self._state.put(BEGUN + mark, written_check(job))

    async def begun(self) -> Mapping[str, CheckJob]:
        """The checks whose job is not known, by mark."""
        listing = await self._state.list(BEGUN)
        found = {
            each.key.removeprefix(BEGUN): _read(each, read_check_job) for each in listing.entries
        }
        return {mark: job for mark, job in found.items() if job is not None}

    async def submitted(self, mark: str, job_id: int) -> None:
        """The job of a check is known: of all servers that learn it, one writes it down."""
        entry = await self._state.get(BEGUN + mark)
        begun = entry and _read(entry, read_check_job)
        if entry and begun:
            job = replace(begun, job_id=job_id)
            await self._state.commit(
                [Expect(entry.key, entry.revision)],
                [Delete(entry.key), Put(f"{JOBS}{job_id}", written_check(job))],
            )

    async def discard(self, mark: str) -> None:
        """The check was not submitted."""
        await self._state.commit([], [Delete(BEGUN + mark)])

    async def jobs(self) -> tuple[CheckJob, ...]:
        """The checks under way, by number."""
        listing = await self._state.list(JOBS)
        found = [_read(each, read_check_job) for each in listing.entries]
        jobs = [each for each in found if each is not None]
        return tuple(sorted(jobs, key=lambda each: each.job_id))

    async def remove(self, job_id: int) -> None:
        """The check has its results."""
        await self._state.commit([], [Delete(f"{JOBS}{job_id}")])

    async def of_node(self, node: str) -> tuple[NodeCheck, ...]:
        """The results of a node, newest first."""
        entry = await self._state.get(RESULTS + node)
        return (entry and _read(entry, read_results)) or ()

    async def record(self, node: str, judge: Callable[[Sequence[NodeCheck]], NodeCheck]) -> None:
        """Add a result to those of the node; `judge` makes it from the earlier ones."""
        for _ in range(_TRIES):
            entry = await self._state.get(RESULTS + node)
            before = (entry and _read(entry, read_results)) or ()
            check = judge(before)
            after = with_result(before, check)
            warning = warning_of(after)
            changes: list[Change] = [Put(RESULTS + node, written_check(after))]
            key = WARNINGS + node
            changes.append(Put(key, warning.encode()) if warning else Delete(key))
            expected = Expect(RESULTS + node, entry.revision if entry is not None else 0)
            if await self._state.commit([expected], changes) is not None:
                return
        raise Unavailable(f"The results of {node} change all the time.")


def _read(entry: Entry, read: Callable[[bytes], _T]) -> _T | None:
    """The value of a key; one that is not valid is as good as none."""
    try:
        return read(entry.value)
    except BadCheck as error:
        _log.warning("%s is not valid: %s", entry.key, error)
        return None
