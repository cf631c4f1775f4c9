"""Destroys data keys of allocations whose retention is over.

A key goes when its allocation is over and its retention has passed since it was made. Nothing of it
may be left in the sensitive bucket. So logs and recordings are removed first. Then no copy of them
can be opened, such as an older version of an object or a backup of the bucket. Everything of an
allocation is under TENANT/PROJECT/ALLOCATION/ there, recordings too.

A job that wrote nothing has a key as well, and no objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.audit import AuditTrail
from lattice.domain.objects import ObjectStore, key_of
from lattice.domain.recording_path import recorded_allocation
from lattice.features.logs.service.sealed_objects import allocation_of
from lattice.foundation.data_keys import DataKeys, KeyRecord

_log = logging.getLogger(__name__)

_NO_TENANT = "-"


class RecordingSweep(Protocol):
    """Recordings of terminals, which end with the same retention."""

    async def sweep(self, days_of: Callable[[str], int], unfinished: Callable[[str], bool]) -> None:
        """Remove what is older than the retention of its tenant."""


class KeyRetention:
    """Called after each sweep of the retention."""

    def __init__(
        self,
        keys: DataKeys,
        objects: ObjectStore,
        trail: AuditTrail,
        clock: Clock,
        recordings: RecordingSweep | None = None,
    ) -> None:
        """`objects` is the sensitive bucket as it is."""
        self.objects = objects
        self._recordings = recordings
        self._keys = keys
        self._trail = trail
        self._clock = clock

    async def sweep(self, days_of: Callable[[str], int], unfinished: Callable[[str], bool]) -> int:
        """Destroy the keys that nothing needs; returns how many.

        `days_of` is the retention of a tenant; 0: for ever. `unfinished` tells of an allocation.
        """
        if self._recordings is not None:
            await self._recordings.sweep(days_of, unfinished)
        destroyed = 0
        now = self._clock.now()
        for ref, record in await self._keys.records():
            days = days_of(record.tenant or _NO_TENANT)
            if not days or now - record.made < timedelta(days=days) or unfinished(ref):
                continue
            try:
                if not await self._is_needed(ref, record):
                    reason = f"the retention of {days} day{'' if days == 1 else 's'} is over"
                    destroyed += await self._keys.destroy(ref, reason, self._trail)
            except LatticeError as error:
                _log.warning("the data key of %s is not destroyed: %s", ref, error.message)
        return destroyed

    async def _is_needed(self, ref: str, record: KeyRecord) -> bool:
        """True if the bucket has an object of this allocation."""
        name = ref.partition("@")[0]
        folder = key_of(record.tenant or _NO_TENANT, record.account or _NO_TENANT, name)
        async for each in self.objects.listing(f"{folder}/"):
            # The number of a job may be in use for the second time.
            if (allocation_of(each.key) or recorded_allocation(each.key)) in {"", ref}:
                return True
        return False
