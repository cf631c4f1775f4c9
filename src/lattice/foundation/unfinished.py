"""Which allocations are unfinished in Slurm, followed from reading to reading."""

from __future__ import annotations

from collections.abc import Container

from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.allocation_index import AllocationTally
from lattice.domain.scheduler import Scheduler


class UnfinishedAllocations:
    """One for everybody who asks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tally = AllocationTally(_unfinished)

    def refs(self) -> Container[str] | None:
        """The `ref` of each; None if that is not reliable now. For use at once: it changes."""
        try:
            reading = self._scheduler.live()
        except Unavailable:
            return None
        return self._tally.of(reading.cluster.index) if reading.source.ok else None


def _unfinished(allocation: Allocation) -> tuple[str, ...]:
    return () if allocation.state.finished else (allocation.ref,)
