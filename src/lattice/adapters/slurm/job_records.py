"""One job from slurmrestd, by its id.

For the id of an array Slurm answers with all tasks of the array. So a reader who expects one record
chooses its own among them, and does not ask for large arrays. An answer has at most 16 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice.adapters.slurm.answer import SlurmRefused, checked, read_answer
from lattice.adapters.slurm.dialect import Dialect, Dialects
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.schema import Raw
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.allocation import Allocation

_INVALID_JOB = 2017
_TIMEOUT_S = 15.0
_LIMIT_BYTES = 16 * 1024 * 1024
"""Some 2 000 records of 8 KB."""
_TOO_LARGE = "The id is that of an array, and slurmrestd has no other record of this task."


class JobRecords:
    """The records that slurmctld has for an id."""

    def __init__(self, rest: SlurmRest, dialects: Dialects) -> None:
        self._rest = rest
        self._dialects = dialects

    async def of(self, dialect: Dialect, job_id: int) -> Sequence[Raw]:
        """Empty if slurmctld does not know the id. Raises `Unavailable`."""
        path = f"{dialect.path('jobs').rstrip('/').removesuffix('s')}/{job_id}"
        reply = await self._rest.get(
            path, timeout_s=_TIMEOUT_S, limit_bytes=_LIMIT_BYTES, if_larger=_TOO_LARGE
        )
        try:
            return checked(read_answer(reply.body, "jobs"), reply.status, path).records
        except SlurmRefused as refusal:
            if any(each.number == _INVALID_JOB for each in refusal.problems):
                return ()
            raise

    async def job(self, job_id: int, placing: Placing) -> Allocation | None:
        """The job with this id; None if slurmctld does not have it. Raises `Unavailable`."""
        dialect = await self._dialects.live()
        every = (dialect.schema.job(raw, placing) for raw in await self.of(dialect, job_id))
        return next((each for each in every if each and each.job_id == job_id), None)
