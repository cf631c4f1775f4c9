"""Tracks counters of bad events, and when they last rose. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Rise:
    """The recent rises of one counter."""

    first: float
    last: float
    """When it rose: the first time of those that have not cleared yet, and the last."""
    count: float


class Rises:
    """Counters by name. The first value is no rise, and a decrease is a restart."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._known: dict[str, float] = {}
        self._risen: dict[str, Rise] = {}

    def look(self, counters: Mapping[str, float], time: float, *, from_zero: bool = False) -> None:
        """Take new values. With `from_zero` a new counter has risen from zero."""
        for name, value in counters.items():
            before = self._known.get(name, 0.0 if from_zero else value)
            self._known[name] = value
            grown = value - before
            if grown <= 0:
                continue
            rise = self._risen.get(name)
            if rise is None or time - rise.last > self._kept_s:
                self._risen[name] = Rise(time, time, grown)
            else:
                rise.last = time
                rise.count += grown

    def standing(self, name: str, time: float) -> Rise | None:
        """Return the rise, if it has not cleared yet."""
        rise = self._risen.get(name)
        return rise if rise is not None and time - rise.last <= self._kept_s else None

    def last(self, name: str) -> Rise | None:
        """Return the newest rise, cleared or not."""
        return self._risen.get(name)

    def names(self) -> list[str]:
        """Return the counters that ever rose."""
        return list(self._risen)
