"""Shared by rules about mounts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.domain.jobfacts import MountFact
from lattice.features.diag.model import Case, MountTarget
from lattice.features.diag.rules.findings import earlier_facts, increase


@dataclass(frozen=True, slots=True)
class MountRates:
    """Rates per second between two looks; None if not counted."""

    read_bytes_s: float | None
    write_bytes_s: float | None
    operations_s: float | None


def rates(case: Case, node: str, mount: MountFact) -> MountRates | None:
    """Return the rates of a mount, or None without an earlier look."""
    earlier = earlier_facts(case, node)
    mounts = earlier.mounts if earlier is not None else ()
    before = next((each for each in mounts if each.path == mount.path), None)
    if earlier is None or before is None:
        return None
    over_s = case.facts[node].time - earlier.time
    return MountRates(
        _rate(before.read_bytes, mount.read_bytes, over_s),
        _rate(before.write_bytes, mount.write_bytes, over_s),
        _rate(before.operations, mount.operations, over_s),
    )


def _rate(before: float | None, now: float | None, over_s: float) -> float | None:
    more = increase(before, now)
    return None if more is None else more / over_s


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
