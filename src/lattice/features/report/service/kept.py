"""Summaries in the object store: any server reads them, and each is written once."""

from __future__ import annotations

import logging

from lattice.domain.attempts import JobAttempt
from lattice.domain.objects import NoObject, ObjectStore
from lattice.domain.runsummary import BadSummary, RunSummary, decoded, encoded, summary_key

_log = logging.getLogger(__name__)


class KeptSummaries:
    """One document per attempt."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def of(self, attempt: JobAttempt) -> RunSummary | None:
        """Return the stored summary, or None if there is none that parses. Raises `Unavailable`."""
        key = summary_key(attempt)
        try:
            return decoded(await self._objects.read(key))
        except NoObject:
            return None
        except BadSummary as error:
            _log.warning("%s is no summary of a run: %s", key, error)
            return None

    async def is_there(self, attempt: JobAttempt) -> bool:
        """Return True if the store has a summary of it. Raises `Unavailable`."""
        key = summary_key(attempt)
        async for each in self._objects.listing(key):
            if each.key == key:
                return True
        return False

    async def keep(self, attempt: JobAttempt, summary: RunSummary) -> bool:
        """Write it; return False if another server has done so before. Raises `Unavailable`."""
        return await self._objects.put_new(summary_key(attempt), encoded(summary))
