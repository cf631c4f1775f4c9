"""The limits of output on this node: of all spools together, and of one job.

Beyond a job's quota nothing is read. The file's size shows how much was written, so the job is not
disturbed and the gap's size is exact. The gap is reported when it begins, whenever it has doubled,
and at the end. Each report is a chunk, and the largest gap counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from lattice.base.failpoints import failpoint
from lattice.domain.logs import GapCause
from lattice.features.logs.node.durable import replace
from lattice.features.logs.node.spool import StreamSpool
from lattice.features.logs.node.tail import Tail

_log = logging.getLogger(__name__)

NO_QUOTA = 1 << 62
_EVERY_S = 1.0
_RESERVE_BYTES = 256 * 1024 * 1024
"""Free space to keep on the disk."""


class Budget:
    """The limit of the node's spools.

    Counted once a second; between two counts a job can add what it writes in a second.
    """

    def __init__(
        self, folder: Path, most_bytes: int, spools: Callable[[], Iterable[StreamSpool]]
    ) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._spools = spools
        self.used_bytes = 0
        self.full = False

    def room(self) -> bool:
        """True while more may be kept."""
        return not self.full

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if spools := tuple(self._spools()):
                self.used_bytes, free = await asyncio.to_thread(self._measure, spools)
                self.full = self.used_bytes >= self._most_bytes or free < _RESERVE_BYTES
            else:
                self.used_bytes = 0
            await asyncio.sleep(_EVERY_S)

    def _measure(self, spools: Iterable[StreamSpool]) -> tuple[int, int]:
        """The size of the spools, and the free space of the disk."""
        disk = os.statvfs(self._folder)
        return sum(map(_size, spools)), disk.f_bavail * disk.f_frsize


def _size(spool: StreamSpool) -> int:
    try:
        return spool.size_bytes
    except OSError:
        return 0


class JobQuota:
    """Counted over all streams of a job on this node, from the attempt's start."""

    def __init__(self, most_bytes: int = NO_QUOTA) -> None:
        self._most_bytes = most_bytes
        self._used_bytes = 0

    @property
    def left_bytes(self) -> int:
        """How much more may be kept."""
        return max(0, self._most_bytes - self._used_bytes)

    def took(self, size_bytes: int) -> None:
        """Count bytes that are kept, or were found on disk."""
        self._used_bytes += size_bytes


@dataclass(frozen=True, slots=True)
class _Passed:
    """Kept across restarts: bytes skipped before the file was truncated, and bytes reported."""

    before_bytes: int = 0
    told_bytes: int = 0


class Overrun:
    """The rest of a stream over its quota. It stays over, even if the quota is raised."""

    def __init__(self, spool: StreamSpool, tail: Tail, passed: _Passed | None = None) -> None:
        self._spool = spool
        self._tail = tail
        self._passed = passed or _Passed()
        if passed is None:
            self._keep(self._passed)
            _log.warning(
                "output of job %d: its quota is reached; what comes is counted and not kept",
                spool.head.job_id,
            )

    @classmethod
    def left(cls, spool: StreamSpool, tail: Tail) -> Overrun | None:
        """An overrun that an earlier agent began, or None."""
        with suppress(FileNotFoundError, msgspec.MsgspecError):
            content = (spool.folder / "quota.json").read_bytes()
            return cls(spool, tail, msgspec.json.decode(content, type=_Passed))
        return None

    def check(self, now_ms: int, *, end: bool = False) -> bool:
        """Count. True if a report was made, and a chunk waits. `end`: the writers are gone."""
        mark = self._tail.mark
        found = self._tail.check()
        if found.anew or found.lost_bytes:
            self._lost(found.lost_bytes)
        if self._tail.mark != mark:
            self._spool.remember(self._tail.mark)
        passed = self._passed.before_bytes + self._tail.behind_bytes
        reported = self._passed.told_bytes
        if passed <= reported or (passed < 2 * reported and not end):
            return False
        self._report(passed, now_ms)
        return True

    def _lost(self, lost_bytes: int | None) -> None:
        before, reported = self._passed.before_bytes, self._passed.told_bytes
        if lost_bytes is None:
            # Truncated while nobody looked: only the reported size is known.
            before = max(before, reported)
        else:
            before += lost_bytes
        # Before the mark: after a kill in between, the old mark is found and nothing is counted
        # twice.
        self._keep(_Passed(before, reported))
        failpoint("quota.anew.written")

    def _report(self, passed_bytes: int, now_ms: int) -> None:
        if any(each.cause is GapCause.QUOTA for each in self._spool.gaps()):
            # A chunk has one gap for each position and cause; a kill left this one.
            self._spool.close_chunk()
        self._spool.add_gap(GapCause.QUOTA, passed_bytes, now_ms)
        self._spool.close_chunk()
        failpoint("quota.gap.closed")
        self._keep(_Passed(self._passed.before_bytes, passed_bytes))

    def _keep(self, passed: _Passed) -> None:
        replace(self._spool.folder / "quota.json", msgspec.json.encode(asdict(passed)))
        self._passed = passed
