"""The NVIDIA driver reported an error of a GPU (XID). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import Rule, Severity
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.rules.finding import Finding, Glance, Level, gpu_name
from lattice.features.watch.node.rules.rises import Rise, Rises

_SERIES = "gpu_xid_total"
_APART = "/xid"
_SAID = {
    "13": "an exception in a kernel of the job",
    "31": "a kernel of the job read or wrote where it must not",
    "43": "the job's work on the card was stopped",
    "45": "the job's work on the card was cleaned up",
    "48": "a memory error that can't be corrected",
    "62": "its internal controller halted",
    "63": "a memory row was set aside",
    "64": "a memory row could not be set aside",
    "74": "an NVLink error",
    "79": "the card has fallen off the bus",
    "92": "many corrected memory errors",
    "94": "a contained memory error",
    "95": "an uncontained memory error",
    "119": "its system processor does not answer",
    "120": "an error of its system processor",
}
_OF_THE_JOB = frozenset({"13", "31", "43", "45"})
_LASTING = frozenset({"48", "62", "64", "79", "95", "119", "120"})
"""A card that reported one of these is not well again because time has passed."""


class Xid:
    """Each number by itself: one that is harmless must not stand before one that is not.

    So the subject is the card's UUID and the number, `GPU-…/xid79`.
    """

    rule = Rule.XID

    def __init__(self, bounds: Bounds) -> None:
        self._rises = Rises(bounds.event_kept_s)
        self._watched: set[str] = set()
        """Cards that were looked at before: on them a series that is new has risen from nothing."""

    def look(self, glance: Glance) -> Iterator[Finding]:
        found = {
            f"{each.label('gpu_uuid')}{_APART}{each.label('xid')}": each.value
            for each in glance.of(_SERIES)
        }
        cards = {each.partition(_APART)[0] for each in found} | _without_errors(glance)
        for name, value in found.items():
            known = name.partition(_APART)[0] in self._watched
            self._rises.look({name: value}, glance.time, from_zero=known)
        self._watched = cards
        for name in self._rises.names():
            uuid, _, number = name.partition(_APART)
            if uuid in cards:
                lasts = number in _LASTING
                rises = self._rises
                rise = rises.last(name) if lasts else rises.standing(name, glance.time)
                yield _finding(name, rise)


def _without_errors(glance: Glance) -> set[str]:
    """Cards of which it is said that there was none, which is a measurement too.

    A series begins with its first error. Until then its absence names the card, and nobody who
    failed.
    """
    return {
        uuid
        for each in glance.absences(_SERIES)
        if (uuid := dict(each.labels).get("gpu_uuid")) and not each.last_error
    }


def _finding(name: str, rise: Rise | None) -> Finding:
    uuid, _, number = name.partition(_APART)
    if rise is None:
        return Finding(subject=name, level=Level.GOOD, words=f"No XID {number} again.")
    said = _SAID.get(number, "")
    of_the_job = number in _OF_THE_JOB
    return Finding(
        subject=name,
        level=Level.BAD,
        severity=Severity.WARNING if of_the_job else Severity.CRITICAL,
        value=rise.count,
        bound=0.0,
        since=rise.first,
        words=f"The driver reported XID {number} of {gpu_name(uuid)}{f': {said}' if said else ''}.",
        remedy="Mostly an error of the program: run it with CUDA_LAUNCH_BLOCKING=1, or under "
        "compute-sanitizer."
        if of_the_job
        else "Save what you can and tell the site: the card may need a reset.",
    )
