"""What a rule finds at one look, and what it looks at. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from lattice.domain.alert import Progress, Rule, Severity
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, Sample

_LOOKS_MISSED = 3.0


class Level(StrEnum):
    """How it stands with one subject of a rule."""

    BAD = "bad"
    BETWEEN = "between"
    """Not bad enough to fire, not good enough to clear; or too little happened to judge."""
    GOOD = "good"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Of one subject. Everything below `level` is for one that is bad or has passed."""

    subject: str = ""
    level: Level
    severity: Severity = Severity.WARNING
    value: float | None = None
    bound: float | None = None
    unit: str = ""
    since: float | None = None
    words: str = ""
    remedy: str = ""


class Glance:
    """A snapshot and the one before it, with what is absent sorted once for all rules."""

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
        """True if anything tells now whether the job gets on."""
        self.broken = before is None or now.time - before.time > _LOOKS_MISSED * max(
            before.resolution_s, now.resolution_s
        )
        """True if looks are missing in between: nobody knows what lasted through them."""
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
        """The sample of each card."""
        return {each.label("gpu_uuid"): each for each in self.of(metric)}

    def absences(self, metric: str) -> list[Absence]:
        return self._absent.get(metric, [])


class RuleMachine(Protocol):
    """One rule over one life of one job. Fed every snapshot, in the order of time."""

    @property
    def rule(self) -> Rule: ...

    def look(self, glance: Glance) -> Iterable[Finding]:
        """One finding a subject that can be judged now. Of whom nothing is found is unmeasured."""


class Lasting:
    """Since when something holds without a break, for each subject, and over how many looks."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int]] = {}

    def holds(self, subject: str, glance: Glance) -> tuple[float, int]:
        """It holds now: since when, and how often it was seen to."""
        since, looks = self._since.get(subject, (glance.time, 0))
        if glance.broken:
            since, looks = glance.time, 0
        self._since[subject] = (since, looks + 1)
        return since, looks + 1

    def ends(self, subject: str) -> None:
        self._since.pop(subject, None)

    def keep_only(self, subjects: Iterable[str]) -> None:
        """Of the others nothing was measured, so nothing lasts."""
        kept = set(subjects)
        for subject in [each for each in self._since if each not in kept]:
            del self._since[subject]


def gpu_name(uuid: str) -> str:
    """Short enough for a sentence: `GPU-1a2b3c4d`."""
    return uuid[:12]
