"""The newest events of one run of a job on this node, in memory.

Alerts and what the job reports have room of their own, so that a job can't push its alerts out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from lattice.domain.alert import Alert, Phase
from lattice.domain.run_events import LONGEST_TEXT, RunEvent, RunEventKind

MOST_EVENTS = 200
MOST_BYTES = 16 * 1024


class EventRing:
    """The newest events of one kind."""

    def __init__(self) -> None:
        self._events: deque[RunEvent] = deque()
        self.size_bytes = 0
        self.dropped = 0

    def __iter__(self) -> Iterator[RunEvent]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: RunEvent) -> None:
        self._events.append(event)
        self.size_bytes += event.size_bytes
        while len(self._events) > MOST_EVENTS or self.size_bytes > MOST_BYTES:
            self.drop_oldest()

    def drop_oldest(self) -> None:
        self.size_bytes -= self._events.popleft().size_bytes
        self.dropped += 1


class RunEvents:
    """Of one run. Standing alerts are added when they are read."""

    def __init__(self) -> None:
        self._alerts, self._reported = EventRing(), EventRing()
        self._mode = ""
        self._texts: dict[tuple[str, str], str] = {}
        """Of alerts that fire: once one is over, its text is about that."""

    @property
    def size_bytes(self) -> int:
        return self._alerts.size_bytes + self._reported.size_bytes

    @property
    def dropped(self) -> int:
        return self._alerts.dropped + self._reported.dropped

    def report(self, event: RunEvent) -> None:
        """Add what the job reported."""
        self._reported.add(event)

    def take_mode(self, mode: str, time: float) -> None:
        """Add a switch, if this mode is known and is another one than before."""
        if mode and self._mode and mode != self._mode:
            # As what is reported, switches are the owner's doing.
            self._reported.add(RunEvent(kind=RunEventKind.MODE, time=time, name=mode))
        self._mode = mode or self._mode

    def take_changes(self, changes: Iterable[Alert]) -> None:
        """Add the alerts that are over."""
        for each in changes:
            if each.phase is Phase.FIRING:
                self._texts[each.key] = each.text
            elif each.phase is Phase.CLEARED:
                text = self._texts.pop(each.key, each.text)
                self._alerts.add(alert_event(replace(each, text=text), each.time))

    def close(self, standing: Iterable[Alert], time: float) -> None:
        """Add standing alerts as over: nobody judges them any more."""
        for each in standing:
            self._alerts.add(alert_event(each, time))
        self._texts.clear()

    def drop_oldest(self) -> None:
        """Make room. What the job reported goes first."""
        ring = self._reported if len(self._reported) else self._alerts
        if len(ring):
            ring.drop_oldest()

    def read(self, standing: Iterable[Alert]) -> tuple[RunEvent, ...]:
        """All of them in the order of time, with the alerts that stand."""
        lasting = (alert_event(each, None) for each in standing)
        found = (*self._alerts, *lasting, *self._reported)
        return tuple(sorted(found, key=lambda each: (each.time, each.kind.value, each.name)))


def alert_event(alert: Alert, ended: float | None) -> RunEvent:
    """An alert as an event; it lasts if `ended` is None."""
    return RunEvent(
        kind=RunEventKind.ALERT,
        time=alert.since,
        ended=ended,
        lasts=ended is None,
        name=alert.rule.value,
        subject=alert.subject,
        text=alert.text[:LONGEST_TEXT],
    )
