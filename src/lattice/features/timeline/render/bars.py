"""Bars on the axis of a timeline. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lattice.features.timeline.model import Timeline


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch on the axis, from 0 to 1; a moment has no length."""

    begin: float
    end: float
    kind: str
    share: float = 1.0
    """How much of the stretch it covers."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class BarRow:
    """One row with bars."""

    label: str
    bars: tuple[Bar, ...]
    note: str = ""
    shares: bool = False
    """True for bars that are drawn as high as their share."""
    apart: bool = False
    """True if each bar begins something new, even right after the one before."""


class Axis:
    """Times as places from 0 to 1."""

    def __init__(self, timeline: Timeline) -> None:
        self.begin = timeline.begin
        self.span_s = max((timeline.until - timeline.begin).total_seconds(), 1.0)

    def at(self, time: datetime | None) -> float:
        """None is the end. What lies outside is at the edge."""
        if time is None:
            return 1.0
        return min(max((time - self.begin).total_seconds() / self.span_s, 0.0), 1.0)
