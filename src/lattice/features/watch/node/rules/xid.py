"""The NVIDIA driver reported an error of a GPU (XID). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import AlertRule, Severity
from lattice.features.watch.node.rules.finding import (
    AlertFinding,
    AlertLevel,
    SnapshotWindow,
    gpu_name,
)
from lattice.features.watch.node.rules.rises import Rise, Rises
from lattice.observe.conditions import is_program_xid
from lattice.observe.thresholds import Thresholds

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
_LASTING = frozenset({"48", "62", "64", "79", "95", "119", "120"})
"""A GPU with one of these does not recover by itself."""


class Xid:
    """Judges each XID separately: a harmless one must not hide another.

    So the subject is the GPU's UUID and the number, `GPU-…/xid79`.
    """

    rule = AlertRule.XID

    def __init__(self, thresholds: Thresholds) -> None:
        self._rises = Rises(thresholds.event_clear_s)
        self._watched: set[str] = set()
        """GPUs that were seen before: a new series of one of them has risen from zero."""

    def look(self, glance: SnapshotWindow) -> Iterator[AlertFinding]:
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


def _without_errors(glance: SnapshotWindow) -> set[str]:
    """Return the GPUs that report no error, which is a measurement too.

    A series begins with its first error. Until then its absence names the GPU and has no error
    message.
    """
    return {
        uuid
        for each in glance.absences(_SERIES)
        if (uuid := dict(each.labels).get("gpu_uuid")) and not each.last_error
    }


def _finding(name: str, rise: Rise | None) -> AlertFinding:
    uuid, _, number = name.partition(_APART)
    if rise is None:
        return AlertFinding(subject=name, level=AlertLevel.GOOD, words=f"No XID {number} again.")
    said = _SAID.get(number, "")
    of_the_job = is_program_xid(number)
    return AlertFinding(
        subject=name,
        level=AlertLevel.BAD,
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
