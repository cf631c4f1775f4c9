"""The input and the findings of a rule, and the state that rules keep. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from lattice.domain.alert import AlertRule, Progress, Severity
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, Sample

_LOOKS_MISSED = 3.0


class AlertLevel(StrEnum):
    """The state of one subject of a rule."""

    BAD = "bad"
    BETWEEN = "between"
    """Not bad enough to fire, not good enough to clear; or too little data to judge."""
    GOOD = "good"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFinding:
    """The state of one subject. Fields below `level` are for one that is bad or has cleared."""

    subject: str = ""
    level: AlertLevel
    severity: Severity = Severity.WARNING
    value: float | None = None
    bound: float | None = None
    unit: str = ""
    since: float | None = None
    text: str = ""
    remedy: str = ""


class SnapshotWindow:
    """A snapshot and the one before it, with absences indexed for all rules."""

    __slots__ = ("_absent", "before", "broken", "now", "progress", "progress_known")

    def __init__(
        self,
        before: JobSnapshot | None,
        now: JobSnapshot,
        progress: Progress,
        *,
        progress_known: bool,
    ) -> None:
        self.before = before
        self.now = now
        self.progress = progress
        self.progress_known = progress_known
        """True if any sign of progress is measured now."""
        self.broken = before is None or now.time - before.time > _LOOKS_MISSED * max(
            before.resolution_s, now.resolution_s
        )
        """True if snapshots are missing in between: then durations are unknown."""
        self._absent: dict[str, list[Absence]] = {}
        for each in now.readings:
            if isinstance(each, Absence):
                self._absent.setdefault(each.metric, []).append(each)

    @property
    def time(self) -> float:
        return self.now.time

    def of(self, metric: str) -> tuple[Sample, ...]:
        return self.now.of(metric)

    def by_gpu(self, metric: str) -> dict[str, Sample]:
        return {each.label("gpu_uuid"): each for each in self.of(metric)}

    def absences(self, metric: str) -> list[Absence]:
        return self._absent.get(metric, [])


class RuleMachine(Protocol):
    """One rule over one run of one job. It gets every snapshot, in order of time."""

    @property
    def rule(self) -> AlertRule: ...

    def check(self, window: SnapshotWindow) -> Iterable[AlertFinding]:
        """Yield one finding per subject that can be judged; the others count as unmeasured."""


class Lasting:
    """Since when a condition holds for each subject, and over how many snapshots."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int]] = {}

    def holds(self, subject: str, window: SnapshotWindow) -> tuple[float, int]:
        """Record that it holds now; return since when, and how often it was seen."""
        since, count = self._since.get(subject, (window.time, 0))
        if window.broken:
            since, count = window.time, 0
        self._since[subject] = (since, count + 1)
        return since, count + 1

    def ends(self, subject: str) -> None:
        self._since.pop(subject, None)

    def keep_only(self, subjects: Iterable[str]) -> None:
        """Forget all others: they were not measured."""
        wanted = set(subjects)
        for subject in [each for each in self._since if each not in wanted]:
            del self._since[subject]


@dataclass(slots=True)
class Rise:
    """The recent rises of one counter."""

    first: float
    last: float
    """When it rose: the first time of those that have not cleared yet, and the last."""
    count: float


class Rises:
    """Counters of bad events by name, and when they last rose.

    The first value is no rise, and a decrease is a restart.
    """

    def __init__(self, clear_s: float) -> None:
        self._clear_s = clear_s
        self._known: dict[str, float] = {}
        self._risen: dict[str, Rise] = {}

    def record(
        self, counters: Mapping[str, float], time: float, *, from_zero: bool = False
    ) -> None:
        """Take new values. With `from_zero` a new counter has risen from zero."""
        for name, value in counters.items():
            before = self._known.get(name, 0.0 if from_zero else value)
            self._known[name] = value
            grown = value - before
            if grown <= 0:
                continue
            rise = self._risen.get(name)
            if rise is None or time - rise.last > self._clear_s:
                self._risen[name] = Rise(time, time, grown)
            else:
                rise.last = time
                rise.count += grown

    def standing(self, name: str, time: float) -> Rise | None:
        """Return the rise, if it has not cleared yet."""
        rise = self._risen.get(name)
        return rise if rise is not None and time - rise.last <= self._clear_s else None

    def last(self, name: str) -> Rise | None:
        """Return the newest rise, cleared or not."""
        return self._risen.get(name)

    def names(self) -> list[str]:
        """Return the counters that ever rose."""
        return list(self._risen)


def gpu_name(uuid: str) -> str:
    """Return a UUID short enough for a sentence: `GPU-1a2b3c4d`."""
    return uuid[:12]
