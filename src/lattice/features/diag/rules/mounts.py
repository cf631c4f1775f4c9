"""Shared by rules about mounts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.domain.jobfacts import MountFact
from lattice.features.diag.model import Case, MountTarget
from lattice.features.diag.rules.findings import earlier_facts, increase


@dataclass(frozen=True, slots=True)
class MountRates:
    """Rates per second between two readings; None if not counted."""

    read_bytes_s: float | None
    write_bytes_s: float | None
    operations_s: float | None
    latency_s: float | None
    """Mean time of an operation, if it is known for this period."""


@dataclass(frozen=True, slots=True)
class DiskRates(MountRates):
    """Of the disk below, for the whole node."""

    busy: float
    """The share of the time in which it had work."""


def rates(case: Case, node: str, mount: MountFact) -> MountRates | None:
    """Return the rates of a mount, or None without an earlier reading."""
    found = _before(case, node, mount)
    if found is None:
        return None
    before, over_s = found
    return MountRates(
        _rate(before.read_bytes, mount.read_bytes, over_s),
        _rate(before.write_bytes, mount.write_bytes, over_s),
        _rate(before.operations, mount.operations, over_s),
        _mean(before.spent_s, mount.spent_s, before.operations, mount.operations),
    )


def disk_rates(case: Case, node: str, mount: MountFact) -> DiskRates | None:
    """Return the rates of the disk below a mount, or None without an earlier reading of it."""
    found = _before(case, node, mount)
    if found is None or not mount.disk or found[0].disk != mount.disk:
        return None
    before, over_s = found
    busy = _rate(before.disk_busy_s, mount.disk_busy_s, over_s)
    if busy is None:
        return None
    return DiskRates(
        _rate(before.disk_read_bytes, mount.disk_read_bytes, over_s),
        _rate(before.disk_write_bytes, mount.disk_write_bytes, over_s),
        _rate(before.disk_operations, mount.disk_operations, over_s),
        _mean(
            before.disk_spent_s, mount.disk_spent_s, before.disk_operations, mount.disk_operations
        ),
        min(1.0, busy),
    )


def _before(case: Case, node: str, mount: MountFact) -> tuple[MountFact, float] | None:
    """Return the earlier reading of a mount, and how many seconds ago it was."""
    earlier = earlier_facts(case, node)
    mounts = earlier.mounts if earlier is not None else ()
    before = next((each for each in mounts if each.path == mount.path), None)
    if earlier is None or before is None:
        return None
    return before, case.facts[node].time - earlier.time


def _rate(before: float | None, now: float | None, over_s: float) -> float | None:
    more = increase(before, now)
    return None if more is None or over_s <= 0 else more / over_s


def _mean(
    spent_before: float | None, spent: float | None, before: float | None, now: float | None
) -> float | None:
    took, operations = increase(spent_before, spent), increase(before, now)
    return took / operations if took is not None and operations else None


def target_of(case: Case, path: str) -> MountTarget | None:
    """Return the site's guarantee for the longest matching path."""
    found = [
        each
        for each in case.targets.mounts
        if path == each.path or path.startswith(each.path.rstrip("/") + "/")
    ]
    return max(found, key=lambda each: len(each.path), default=None)


def answers_within_s(case: Case, path: str) -> float:
    """Return how many seconds a `statvfs` of it may take."""
    target = target_of(case, path)
    if target is None or target.answers_s is None:
        return case.targets.mount_answers_s
    return target.answers_s


def format_seconds(seconds: float) -> str:
    """Format a time: `3 ms`."""
    for unit, step in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= step:
            return f"{seconds / step:.3g} {unit}"
    return f"{seconds * 1e6:.0f} µs"
