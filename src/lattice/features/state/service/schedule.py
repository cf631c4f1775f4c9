"""`BackupSchedule`: the loop that makes backups on time. One replica makes each of them.

A record in the state names the next time. Whoever moves it on by compare-and-swap makes the backup.
It is first moved on by a short time alone, so that another replica takes over from one that dies.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.state import Expect, Put, StateStore
from lattice.features.state.service.backups import BackupService

SCHEDULE = "backup/schedule"
CHECK_EVERY_S = 30.0
AGAIN_AFTER_S = 600.0
"""After a backup that failed, or whose maker died."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class BackupCounts:
    """What this server did since it started."""

    made_total: int = 0
    failed_total: int = 0


class BackupSchedule:
    """A background loop; the composition root starts `run`."""

    def __init__(
        self,
        backups: BackupService,
        state: StateStore,
        clock: Clock,
        every_h: float,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._backups = backups
        self._state = state
        self._clock = clock
        self._every_s = every_h * 3600
        self._sleep = sleep
        self.counts = BackupCounts()

    async def run(self) -> None:
        """Check periodically whether one is due, until cancelled."""
        while True:
            # Jitter: servers that start together do not check at the same time.
            await self._sleep(CHECK_EVERY_S * (0.75 + 0.5 * random.random()))  # noqa: S311
            try:
                await self.check()
            except LatticeError as error:
                self.counts.failed_total += 1
                _log.warning("backup: %s", error.message)

    async def check(self) -> bool:
        """Make a backup if one is due and no other server makes it. Raises `LatticeError`."""
        now_s = self._clock.now().timestamp()
        entry = await self._state.get(SCHEDULE)
        # A time later than the schedule allows is of an earlier, longer one.
        latest_s = now_s + max(self._every_s, AGAIN_AFTER_S)
        if entry is not None and now_s < _next_s(entry.value) <= latest_s:
            return False
        revision = await self._move(entry.revision if entry else 0, now_s + AGAIN_AFTER_S)
        if revision is None:
            return False
        made = await self._backups.make(by="")
        self.counts.made_total += 1
        await self._move(revision, now_s + self._every_s)
        gone = await self._backups.prune()
        _log.info("backup made", extra={"backup": made.name, "removed": len(gone)})
        return True

    async def _move(self, revision: int, next_s: float) -> int | None:
        record = json.dumps({"next": int(next_s)}).encode()
        return await self._state.commit([Expect(SCHEDULE, revision)], [Put(SCHEDULE, record)])


def _next_s(value: bytes) -> float:
    """When the next backup is due; a record that can't be read is due now."""
    try:
        return float(json.loads(value)["next"])
    except (ValueError, KeyError, TypeError):
        return 0.0
