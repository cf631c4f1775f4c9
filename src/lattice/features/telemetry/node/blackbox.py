"""The black box: the last minutes of each job on this node, few counters, in memory only.

It is looked into when something went wrong, which is often the end of the job: what a life left is
kept as long as the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lattice.domain.measured import JobSnapshot
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.telemetry import BLACK_BOX_KEPT_S, BLACK_BOX_S
from lattice.features.telemetry.node.rows import Layouts, Row, snapshot_of

NOTED = frozenset(
    {
        "cpu_seconds_total",
        "memory_used_bytes",
        "io_read_bytes_total",
        "io_write_bytes_total",
        "gpu_utilization_percent",
        "gpu_power_watts",
    }
)
_MOST_LIVES = 512
_MOST_ROWS = int(BLACK_BOX_KEPT_S / BLACK_BOX_S) + 1


class BlackBox:
    """Notes of every job."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._layouts = Layouts()
        self._lives: dict[JobIdentity, deque[Row]] = {}

    def note(self, snapshot: JobSnapshot) -> None:
        """Of a snapshot at one of the box's own moments."""
        noted = [each for each in snapshot.samples if each.metric in NOTED]
        rows = self._lives.get(snapshot.identity)
        if rows is None:
            self._make_room()
            rows = self._lives[snapshot.identity] = deque(maxlen=_MOST_ROWS)
        rows.extend(self._layouts.rows_of(snapshot, noted))

    def shift(self, by_s: float) -> None:
        """The servers' time has become known: what was noted was stamped without it."""
        for rows in self._lives.values():
            for row in rows:
                row.time_ms += round(by_s * 1000)

    @property
    def lives(self) -> tuple[JobIdentity, ...]:
        return tuple(self._lives)

    def of(self, identity: JobIdentity) -> list[JobSnapshot]:
        """What is kept of one life, oldest first."""
        oldest_ms = (self._now() - BLACK_BOX_KEPT_S) * 1000
        rows = self._lives.get(identity, ())
        return [snapshot_of(row) for row in rows if row.time_ms >= oldest_ms]

    def _make_room(self) -> None:
        """Lives of which nothing was noted for as long as notes are kept; then the oldest."""
        oldest_ms = (self._now() - BLACK_BOX_KEPT_S) * 1000
        lives = sorted(self._lives.items(), key=lambda each: _last_ms(each[1]))
        for number, (identity, rows) in enumerate(lives):
            if _last_ms(rows) < oldest_ms or len(lives) - number >= _MOST_LIVES:
                del self._lives[identity]


def _last_ms(rows: deque[Row]) -> int:
    return rows[-1].time_ms if rows else 0
