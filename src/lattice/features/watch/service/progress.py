"""Whether the job as a whole makes progress: the newest sign of any node. No I/O."""

from __future__ import annotations

from lattice.domain.alert import Progress
from lattice.features.watch.model import WatchProgress
from lattice.features.watch.service.moments import moment, moment_or_none

QUIET_S = 300.0
"""A job without a sign for this long is reported as not progressing."""


class GettingOn:
    """The progress of a job for one reader."""

    def __init__(self) -> None:
        self._signs = Progress()
        self._moving: bool | None = None

    def take(self, progress: Progress | None) -> None:
        if progress is None:
            return
        mine = self._signs
        self._signs = Progress(
            output=_later(mine.output, progress.output),
            processor=_later(mine.processor, progress.processor),
            storage=_later(mine.storage, progress.storage),
            network=_later(mine.network, progress.network),
        )

    def look(self, now: float, began: float | None) -> WatchProgress | None:
        """Return a change, if any. `began` is when the server began to follow the nodes."""
        last = self._signs.last
        if last is None and (began is None or now - began < QUIET_S):
            return None
        moving = last is not None and now - last < QUIET_S
        if moving is self._moving:
            return None
        self._moving = moving
        signs = self._signs
        return WatchProgress(
            time=moment(now),
            moving=moving,
            output=moment_or_none(signs.output),
            processor=moment_or_none(signs.processor),
            storage=moment_or_none(signs.storage),
            network=moment_or_none(signs.network),
            last=moment_or_none(last),
        )


def _later(mine: float | None, its: float | None) -> float | None:
    if mine is None or its is None:
        return its if mine is None else mine
    return max(mine, its)
