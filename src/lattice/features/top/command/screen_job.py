"""A job's resources, as the live screen needs them for percentages."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from lattice.base.call import Call
from lattice.base.errors import LatticeError
from lattice.base.shell import Shell
from lattice.domain.measured import Shown
from lattice.features.top.model import RowKind, TopCell, TopRow


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """None stands for unknown."""

    cpus: int | None = None
    memory_bytes: int | None = None
    node_count: int = 0

    def share(self, row: TopRow, cell: TopCell, value: float) -> float | None:
        """Return a value in percent of the job's resources, or None if those are unknown."""
        if cell.metric in {Shown.GPU_UTILIZATION, Shown.GPU_SM_OCCUPANCY}:
            return value
        whole: float | None = None
        if cell.metric is Shown.CPU_UTILIZATION and self.cpus:
            whole = 100.0 * self.cpus
        elif cell.metric is Shown.MEMORY_USED and self.memory_bytes:
            whole = float(self.memory_bytes)
        if whole is None or row.kind is RowKind.SUMMARY:
            return None if whole is None else 100 * value / whole
        if self.node_count < 1 or (self.cpus or 0) % self.node_count:
            return None  # its nodes have unequal shares
        return 100 * value / (whole / self.node_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCard:
    """The part of the allocation's card that the screen needs."""

    allocation: JobSize


def job_size(shell: Shell, reference: str) -> JobSize:
    """Ask once. The screen works without it if there is no answer."""
    call = Call("GET", f"/v1/allocations/{quote(reference, safe='')}", JobCard)
    try:
        return shell.call(call).allocation
    except LatticeError:
        return JobSize()
