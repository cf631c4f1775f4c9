"""The state of the live screen. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lattice.domain.measured import Shown
from lattice.features.top.model import RowKind, TopAnswer, TopCell, TopMode, TopRow

MOST_POINTS = 600
"""Of one cell's history."""
_STALE_LOOKS = 3.0
"""A sample older than this many sampling intervals is not current."""

Key = tuple[str, str, Shown]
"""A node, a GPU, a metric."""


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


@dataclass(slots=True)
class TopScreenState:
    """The state of one run of the screen."""

    mode: TopMode
    size: JobSize = field(default_factory=JobSize)
    answer: TopAnswer | None = None
    taken_s: float = 0.0
    """When the answer arrived, by the monotonic clock."""
    trouble: str = ""
    """Why there is no newer answer."""
    paused: bool = False
    sort: int = -1
    """The column that rows are sorted by, highest first; -1 sorts by name."""
    pattern: str = ""
    help: bool = False
    past: dict[Key, deque[tuple[float, float]]] = field(default_factory=dict)

    def take(self, answer: TopAnswer, now_s: float) -> None:
        self.answer, self.taken_s, self.trouble = answer, now_s, ""
        if self.sort >= len(answer.columns):
            self.sort = -1
        for row in answer.rows:
            self._remember(answer, row)

    def _remember(self, answer: TopAnswer, row: TopRow) -> None:
        for cell in row.cells:
            key = (row.node, row.gpu_uuid, cell.metric)
            known = self.past.setdefault(key, deque(maxlen=MOST_POINTS))
            if cell.history:
                known.clear()
                known.extend((each.time, each.value) for each in cell.history)
            if cell.value is None or self.is_stale(row):
                continue
            moment = answer.taken.timestamp() - (row.age_s or 0.0)
            # The same sample seen twice is one point.
            if known and moment <= known[-1][0]:
                known[-1] = (known[-1][0], cell.value)
            else:
                known.append((moment, cell.value))

    def is_stale(self, row: TopRow) -> bool:
        """Return True if the row's values are not current."""
        answer = self.answer
        if answer is None or answer.ended is not None or answer.duration_s is not None:
            return False
        if row.kind is RowKind.SUMMARY:
            return False
        if row.reason or row.age_s is None:
            return True
        resolution_s = answer.origin.resolution_s
        return resolution_s is not None and row.age_s > _STALE_LOOKS * resolution_s

    def age_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.taken_s)

    @property
    def over(self) -> bool:
        """True if the job has ended, so nothing will change."""
        return self.answer is not None and self.answer.ended is not None

    def toggle(self, mode: TopMode) -> None:
        """Switch to this mode, or back to the summary if it is shown already."""
        self.mode = TopMode.SUMMARY if self.mode is mode else mode
        self.sort = -1

    def next_sort(self) -> None:
        """Sort by the next column with values, then by name again."""
        if self.answer is None:
            return
        columns = range(self.sort + 1, len(self.answer.columns))
        filled = (each for each in columns if has_values(self.answer.rows, each))
        self.sort = next(filled, -1)

    def rows(self) -> list[TopRow]:
        """Return the rows below the summary that match the filter, sorted."""
        if self.answer is None:
            return []
        wanted = self.pattern.lower()
        found = [
            each
            for each in self.answer.rows
            if each.kind is not RowKind.SUMMARY
            and (wanted in each.node.lower() or wanted in each.gpu_uuid.lower())
        ]
        if self.sort < 0:
            return found
        return sorted(found, key=self._sort_key)

    def _sort_key(self, row: TopRow) -> tuple[bool, float]:
        value = row.cells[self.sort].value
        # A missing value is no zero: it is sorted below all others.
        return (value is None or self.is_stale(row), -(value or 0.0))


def has_values(rows: Sequence[TopRow], index: int) -> bool:
    """Return True if any row has a value in this column."""
    return any(each.cells[index].value is not None for each in rows)
