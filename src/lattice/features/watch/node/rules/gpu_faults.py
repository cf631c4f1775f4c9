"""Rules about faults of a GPU: throttled, memory errors, and errors of its driver. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lattice.domain.alert import AlertRule, Severity
from lattice.features.watch.node.rules.rule import (
    AlertFinding,
    AlertLevel,
    Lasting,
    Rise,
    Rises,
    SnapshotWindow,
    gpu_name,
)
from lattice.observe.conditions import ThrottleCause, is_program_xid, throttle_causes
from lattice.observe.thresholds import Thresholds

_XID_SERIES = "gpu_xid_total"
_XID_MARK = "/xid"
_MEANINGS = {
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


class ThrottleAlert:
    """A GPU that is throttled by heat or its power limit.

    Fires at once for heat. Power must last: a busy GPU often reaches its limit.
    """

    rule = AlertRule.THROTTLE

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._slowed = Lasting()

    def check(self, window: SnapshotWindow) -> Iterator[AlertFinding]:
        reasons: dict[str, list[str]] = {}
        for each in window.of("gpu_throttled"):
            found = reasons.setdefault(each.label("gpu_uuid"), [])
            if each.value > 0:
                found.append(each.label("reason"))
        drawn, limits = window.by_gpu("gpu_power_watts"), window.by_gpu("gpu_power_limit_watts")
        self._slowed.keep_only(reasons)
        for uuid, given in reasons.items():
            watts, limit = (each[uuid].value if uuid in each else None for each in (drawn, limits))
            causes = throttle_causes(given, watts, limit, self._thresholds)
            if not causes:
                self._slowed.ends(uuid)
                yield AlertFinding(
                    subject=uuid,
                    level=AlertLevel.GOOD,
                    text=f"{gpu_name(uuid)} is not slowed down.",
                )
                continue
            since, _ = self._slowed.holds(uuid, window)
            at_once = any(each.is_fault for each in causes.values())
            lasts = at_once or window.time - since >= self._thresholds.power_throttle_s
            at_limit = set(causes.values()) == {ThrottleCause.LIMIT}
            yield AlertFinding(
                subject=uuid,
                level=AlertLevel.BAD if lasts else AlertLevel.BETWEEN,
                severity=Severity.CRITICAL if at_once else Severity.WARNING,
                since=since,
                text=f"{gpu_name(uuid)} is slowed down by {_throttle_cause(causes)} "
                f"({', '.join(sorted(given))}).",
                remedy="Nothing is broken: the card is at its limit. Compare it with the others of "
                "the job; if it alone is slow, tell the site."
                if at_limit
                else "Tell the site: the card is not cooled or not powered well enough.",
            )


def _throttle_cause(causes: Mapping[str, ThrottleCause]) -> str:
    if ThrottleCause.HEAT in causes.values():
        return "heat"
    return "its power limit" if any("power" in each for each in causes) else "its own protection"


class Ecc:
    """A GPU had an uncorrectable memory error.

    Fires when the count rises; clears when it has not risen for a while.
    """

    rule = AlertRule.ECC

    def __init__(self, thresholds: Thresholds) -> None:
        self._rises = Rises(thresholds.event_clear_s)

    def check(self, window: SnapshotWindow) -> Iterator[AlertFinding]:
        cards = window.by_gpu("gpu_ecc_uncorrected_total")
        self._rises.record({uuid: each.value for uuid, each in cards.items()}, window.time)
        for uuid in cards:
            rise = self._rises.standing(uuid, window.time)
            name = gpu_name(uuid)
            if rise is None:
                yield AlertFinding(
                    subject=uuid, level=AlertLevel.GOOD, text=f"No new error of {name}."
                )
                continue
            errors = f"{rise.count:.0f} memory errors" if rise.count > 1 else "a memory error"
            yield AlertFinding(
                subject=uuid,
                level=AlertLevel.BAD,
                severity=Severity.CRITICAL,
                value=rise.count,
                bound=0.0,
                since=rise.first,
                text=f"{name} met {errors} that could not be corrected.",
                remedy="Results since then may be wrong: go back to a checkpoint from before, and "
                "tell the site.",
            )


class Xid:
    """The NVIDIA driver reported an error of a GPU.

    Judges each XID separately: a harmless one must not hide another. So the subject is
    the GPU's UUID and the number, `GPU-…/xid79`.
    """

    rule = AlertRule.XID

    def __init__(self, thresholds: Thresholds) -> None:
        self._rises = Rises(thresholds.event_clear_s)
        self._watched: set[str] = set()
        """GPUs that were seen before: a new series of one of them has risen from zero."""

    def check(self, window: SnapshotWindow) -> Iterator[AlertFinding]:
        found = {
            f"{each.label('gpu_uuid')}{_XID_MARK}{each.label('xid')}": each.value
            for each in window.of(_XID_SERIES)
        }
        cards = {each.partition(_XID_MARK)[0] for each in found} | _without_errors(window)
        for name, value in found.items():
            known = name.partition(_XID_MARK)[0] in self._watched
            self._rises.record({name: value}, window.time, from_zero=known)
        self._watched = cards
        for name in self._rises.names():
            uuid, _, number = name.partition(_XID_MARK)
            if uuid in cards:
                lasts = number in _LASTING
                rises = self._rises
                rise = rises.last(name) if lasts else rises.standing(name, window.time)
                yield _xid_finding(name, rise)


def _without_errors(window: SnapshotWindow) -> set[str]:
    """Return the GPUs that report no error, which is a measurement too.

    A series begins with its first error. Until then its absence names the GPU and has no error
    message.
    """
    return {
        uuid
        for each in window.absences(_XID_SERIES)
        if (uuid := dict(each.labels).get("gpu_uuid")) and not each.last_error
    }


def _xid_finding(name: str, rise: Rise | None) -> AlertFinding:
    uuid, _, number = name.partition(_XID_MARK)
    if rise is None:
        return AlertFinding(subject=name, level=AlertLevel.GOOD, text=f"No XID {number} again.")
    meaning = f": {_MEANINGS[number]}" if number in _MEANINGS else ""
    of_the_job = is_program_xid(number)
    return AlertFinding(
        subject=name,
        level=AlertLevel.BAD,
        severity=Severity.WARNING if of_the_job else Severity.CRITICAL,
        value=rise.count,
        bound=0.0,
        since=rise.first,
        text=f"The driver reported XID {number} of {gpu_name(uuid)}{meaning}.",
        remedy="Mostly an error of the program: run it with CUDA_LAUNCH_BLOCKING=1, or under "
        "compute-sanitizer."
        if of_the_job
        else "Save what you can and tell the site: the card may need a reset.",
    )
