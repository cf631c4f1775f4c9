"""Exit codes of finished jobs, from `sacct` where slurmrestd does not have them.

slurmrestd 22.05 gives exit code 0 for every past job. The decoder drops impossible values, and this
fills the gap. Only numbers are requested, so the output has no text of users. The exit code of a
finished job never changes, so it is read once and cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, ExitCode

_Run = tuple[int, int]

_LINE = re.compile(r"([0-9]{1,10})\|([0-9]{1,12})\|([0-9]{1,3}):([0-9]{1,3})")
_IDS_A_QUESTION = 500
_REMEMBERED = 100_000


class ExitCodes:
    """Fills in exit codes; also caches None for jobs that `sacct` does not have."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands
        self._known: dict[_Run, ExitCode | None] = {}

    async def filled(self, found: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
        """The same allocations; finished ones without an exit code get it if `sacct` has it."""
        silent = [each for each in found if _is_silent(each)]
        await self._learn([each for each in silent if _run(each) not in self._known])
        if not silent:
            return found
        return tuple(
            replace(each, exit_code=self._known.get(_run(each))) if _is_silent(each) else each
            for each in found
        )

    async def _learn(self, silent: list[Allocation]) -> None:
        asked = silent[:_IDS_A_QUESTION]
        if not asked:
            return
        try:
            text = await self._commands.exit_codes(each.job_id for each in asked)
        except Unavailable:
            # The list is correct without them; they are requested again next time.
            return
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        self._known.update((_run(each), None) for each in asked)
        self._known.update(parse_exit_codes(text))


def parse_exit_codes(text: str) -> Iterable[tuple[_Run, ExitCode]]:
    """Parses lines of `id|submit|code:signal`; skips malformed lines."""
    for line in text.split("\n"):
        if (cells := _LINE.fullmatch(line)) is not None:
            job, submitted, code, signal = map(int, cells.groups())
            yield (job, submitted), ExitCode(code, signal)


def _is_silent(each: Allocation) -> bool:
    return each.state.finished and each.exit_code is None and each.started is not None


def _run(each: Allocation) -> _Run:
    return each.job_id, int(each.submitted.timestamp())
