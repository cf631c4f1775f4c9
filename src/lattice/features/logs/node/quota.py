"""The quota of a job's output on this node.

Beyond the quota nothing is read. The file's size shows how much was written, so the job is not
disturbed and the gap's size is exact. The gap is reported when it begins, whenever it has doubled,
and at the end. Each report is a chunk, and the largest gap counts.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict, dataclass

import msgspec

from lattice.base.failpoints import failpoint
from lattice.domain.logs import GapCause
from lattice.features.logs.node.durable import replace
from lattice.features.logs.node.spool import StreamSpool
from lattice.features.logs.node.tail import Tail

_log = logging.getLogger(__name__)

NO_QUOTA = 1 << 62


class JobQuota:
    """Counted over all streams of a job on this node, from the attempt's start."""

    def __init__(self, most_bytes: int = NO_QUOTA) -> None:
        self._most_bytes = most_bytes
        self._kept_bytes = 0

    @property
    def left_bytes(self) -> int:
        """How much more may be kept."""
        return max(0, self._most_bytes - self._kept_bytes)

    def took(self, size_bytes: int) -> None:
        """Count bytes that are kept, or were found on disk."""
        self._kept_bytes += size_bytes


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

    @property
    def passed_bytes(self) -> int:
        """Bytes that were written and are not kept."""
        return self._passed.before_bytes + self._tail.behind_bytes

    def look(self, now_ms: int, *, end: bool = False) -> bool:
        """Count. True if a report was made, and a chunk waits. `end`: the writers are gone."""
        mark = self._tail.mark
        found = self._tail.look()
        if found.anew or found.lost_bytes:
            self._lost(found.lost_bytes)
        if self._tail.mark != mark:
            self._spool.remember(self._tail.mark)
        passed, told = self.passed_bytes, self._passed.told_bytes
        if passed <= told or (passed < 2 * told and not end):
            return False
        self._tell(passed, now_ms)
        return True

    def _lost(self, lost_bytes: int | None) -> None:
        before, told = self._passed.before_bytes, self._passed.told_bytes
        if lost_bytes is None:
            # Truncated while nobody looked: only the reported size is known.
            before = max(before, told)
        else:
            before += lost_bytes
        # Before the mark: after a kill in between, the old mark is found and nothing is counted
        # twice.
        self._keep(_Passed(before, told))
        failpoint("quota.anew.written")

    def _tell(self, passed_bytes: int, now_ms: int) -> None:
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
