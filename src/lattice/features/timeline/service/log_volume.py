"""How much an attempt wrote as a line, and what of it is lost as events. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from lattice.domain.log_volume import LogVolume
from lattice.features.timeline.model import EventKind, TimelineEvent, TimelineLine, TimelinePoint

OUTPUT = "output"
VIA_LOGS = "stored logs"
MOST_LOSSES = 100
"""Of one attempt, the newest."""


def volume_line(volume: LogVolume, attempt: int) -> TimelineLine:
    """Bytes a second over all streams. A value is that of a whole step."""
    return TimelineLine(
        name=OUTPUT,
        unit="bytes/s",
        attempt=attempt,
        step_s=volume.step_s,
        via=VIA_LOGS,
        points=tuple(
            TimelinePoint(
                time=_moment(volume.begin + (number + 0.5) * volume.step_s),
                value=size_bytes / volume.step_s,
            )
            for number, size_bytes in enumerate(volume.steps)
        ),
    )


def loss_events(volume: LogVolume) -> tuple[TimelineEvent, ...]:
    """The newest lost ranges."""
    newest = sorted(volume.losses, key=lambda each: each.time)[-MOST_LOSSES:]
    return tuple(
        TimelineEvent(
            kind=EventKind.LOST_OUTPUT, time=_moment(each.time), node=each.node, text=each.text
        )
        for each in newest
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(max(seconds, 0.0), UTC)
