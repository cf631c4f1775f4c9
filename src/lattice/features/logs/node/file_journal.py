"""Notes which files a job's processes write to, while no server has granted access.

The files of a process can't be found after its end. So while a grant is pending, the helper notes
their paths, which needs no grant and opens nothing. Files that were missed are opened from the
notes when the job is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

from lattice.base.errors import LatticeError
from lattice.domain.outputs import OutputOpener
from lattice.features.logs.node.writers import LogWriter

_log = logging.getLogger(__name__)

LOOKS_S = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
"""After a change of the job: processes open their files some time after they start."""
_SHORTEST_PAUSE_S = 0.05
_MOST_AT_ONCE = 64


class Noting:
    """One job's notes. `run` works until the job is over."""

    def __init__(
        self,
        opener: OutputOpener,
        job_id: int,
        writers: Callable[[bool], Awaitable[Sequence[LogWriter]]],
        looks_s: Sequence[float] = LOOKS_S,
    ) -> None:
        """`writers` returns the job's processes; with True it reads them again."""
        self._opener = opener
        self._job_id = job_id
        self._writers = writers
        self._looks_s = tuple(looks_s)
        self._wanted = asyncio.Event()
        self._moved = asyncio.Event()
        self._times: Counter[int] = Counter()
        self._unopened: set[int] = set()
        self._trouble = ""

    @property
    def unopened(self) -> bool:
        """True while there are notes of processes with files that were not opened since."""
        return bool(self._unopened)

    def awaited(self) -> None:
        """No answer yet: note the files."""
        self._wanted.set()
        self._moved.set()

    def changed(self) -> None:
        """The job has other processes."""
        self._moved.set()

    def answered(self, opened: Collection[int]) -> None:
        """No answer is pending any more, and files of these processes were opened."""
        self._unopened -= set(opened)
        self._wanted.clear()

    def all_opened(self) -> None:
        """All noted files have been requested."""
        self._unopened.clear()

    async def run(self) -> None:
        """Run until cancelled."""
        looks = 0
        while True:
            await self._wanted.wait()
            moved = await self._moved_within(*self._looks_s[looks : looks + 1])
            if self._wanted.is_set():
                fresh = await self._note(anew=not moved)
                looks = 1 if fresh else looks + (not moved)
            await asyncio.sleep(_SHORTEST_PAUSE_S)

    async def _moved_within(self, pause_s: float | None = None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._moved.wait()
        moved = self._moved.is_set()
        self._moved.clear()
        return moved

    async def _note(self, *, anew: bool) -> bool:
        """Note the files; True if there is a new process."""
        try:
            writers = await self._writers(anew)
        except LatticeError as error:
            self._warn(error.message)
            return False
        # After so many looks the files of a process are complete.
        due = [each.pid for each in writers if self._times[each.pid] < len(self._looks_s)]
        fresh = any(not self._times[pid] for pid in due)
        for begin in range(0, len(due), _MOST_AT_ONCE):
            pids = due[begin : begin + _MOST_AT_ONCE]
            try:
                noted = await self._opener.note_output(self._job_id, pids)
            except LatticeError as error:
                self._warn(error.message)
                return False
            self._times.update(pids)
            self._unopened |= set(pids) if noted else set()
        return fresh

    def _warn(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.warning("output of job %d is not noted: %s", self._job_id, trouble)
        self._trouble = trouble
