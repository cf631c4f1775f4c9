"""What the agent found when it first reached a guest after its boot, kept until the next boot.

It is a file in the agent's state folder, so a restart of the agent loses no time of a start. How
long a guest took until it could be reached is known only if the agent had asked it in vain before.
"""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

import msgspec

from lattice.domain.guest_report import GuestReport
from lattice.domain.machine_facts import MachineFact, ordered_facts
from lattice.domain.slices import SliceStart

_log = logging.getLogger(__name__)
NOT_SEEN = "the agent began to ask after the guest had started"
NO_UPTIME = "the guest does not report for how long it is up"
NO_FACTS = "the program in the guest has no machine_facts.py beside it"
_LONGEST_TEXT = 100
"""It is in the record of the node, which is small."""


class StartRecord:
    """Of one guest."""

    def __init__(self, file: Path | None = None) -> None:
        """`file`: where it is stored; None: only in memory."""
        self._file = file
        self.start = _load(file)
        self._complete = self.start is not None

    @property
    def is_needed(self) -> bool:
        """True if the next report should have the facts of the machine."""
        return not self._complete

    def note(
        self, report: GuestReport, now: datetime, took_s: float, *, asked: bool, was_away: bool
    ) -> None:
        """Take a report into account. `asked`: for facts. `was_away`: the one before failed."""
        before = self.start
        if before is not None and before.boot_id == report.boot_id:
            if self._complete or not asked:
                return
            reached, times = before.reached, _times(before)
        else:
            reached, times = now, _first(report, took_s, was_away=was_away)
        self.start = SliceStart(
            boot_id=report.boot_id,
            reached=reached,
            facts=tuple(_short(each) for each in ordered_facts((*times, *report.facts))),
            reason=NO_FACTS if asked and not report.facts else "",
        )
        self._complete = asked
        if asked:
            self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        partial = self._file.with_suffix(".partial")
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.write_bytes(msgspec.json.encode(self.start))
            partial.replace(self._file)
        except OSError as error:
            _log.warning("%s can't be written: %s", self._file, error.strerror)


_TIMES = ("reached_seconds", "answer_seconds", "driver_seconds")
"""What the agent adds to the facts of the machine."""


def _times(start: SliceStart) -> tuple[MachineFact, ...]:
    return tuple(each for each in start.facts if each.name in _TIMES)


def _first(report: GuestReport, took_s: float, *, was_away: bool) -> tuple[MachineFact, ...]:
    reached, answer, driver = _TIMES
    reason = NO_UPTIME if was_away else NOT_SEEN
    uptime_s = report.uptime_s if was_away else None
    return (
        MachineFact(name=reached, number=uptime_s, reason="" if uptime_s is not None else reason),
        MachineFact(name=answer, number=took_s),
        MachineFact(
            name=driver,
            number=report.driver_s,
            reason="" if report.driver_s is not None else report.gpu_reason or "not reported",
        ),
    )


def _short(fact: MachineFact) -> MachineFact:
    return MachineFact(
        name=fact.name,
        number=fact.number,
        text=fact.text[:_LONGEST_TEXT],
        reason=fact.reason[:_LONGEST_TEXT],
    )


def _load(file: Path | None) -> SliceStart | None:
    """What an earlier agent stored; None if that is not valid."""
    try:
        return None if file is None else msgspec.json.decode(file.read_bytes(), type=SliceStart)
    except (OSError, msgspec.DecodeError):
        return None
