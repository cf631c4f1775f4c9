"""A file system that is slower than the site guarantees. Pure.

A rate below its floor is a fault only while the job stalls for storage.
"""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.jobfacts import MountFact
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Observation,
    each_facts,
    findings,
    format_rate,
    largest_first,
    pressure,
    unknown,
)
from lattice.features.diag.rules.mounts import answers_within_s, rates, target_of

_WAITS_PERCENT = 20.0


class SlowMount:
    """Reads each mount's `statvfs` time, and compares its rates with the site's floors."""

    name, title, area, order = "slow_mount", "Speed of mounts", Area.STORAGE, 180
    explains = frozenset({"data_loader", "straggler", "gpu_idle", "io_latency"})

    def judge(self, case: Case) -> Iterator[Finding]:
        seen: list[Observation] = []
        unjudged: dict[str, list[str]] = {}
        answered = False
        for node, facts in each_facts(case):
            waits = _waits(case, node)
            for mount in facts.mounts:
                if mount.answered_s is None or mount.trouble:
                    continue
                answered = True
                judged = _one(case, node, mount, waits=waits)
                if isinstance(judged, str):
                    unjudged.setdefault(judged, []).append(node)
                else:
                    seen.append(judged)
        if answered:
            template = FindingTemplate(
                unit="s",
                remedy="Tell the site. Meanwhile put what is read often on local scratch "
                "(`sbatch --tmp`), in fewer and larger files.",
            )
            yield from findings(self, case, largest_first(seen), template) if seen else ()
        elif not case.facts:
            yield unknown(self, case, "no node told facts", Lack.SILENT, ())
        for reason, nodes in unjudged.items():
            yield unknown(self, case, reason, Lack.TOO_EARLY, nodes)


def _waits(case: Case, node: str) -> bool | None:
    snapshot = case.sights.get(node)
    stalled = pressure(snapshot, "io") if snapshot is not None else None
    if stalled is not None and stalled >= _WAITS_PERCENT:
        return True
    if any(each.state == "D" for each in case.facts[node].tasks):
        return True
    return None if stalled is None else False


def _one(case: Case, node: str, mount: MountFact, *, waits: bool | None) -> Observation | str:
    assert mount.answered_s is not None
    target = target_of(case, mount.path)
    bound = answers_within_s(case, mount.path)
    slow = []
    if mount.answered_s > bound:
        slow.append(f"took {mount.answered_s:.2g} s to answer (at most {bound:g} s)")
    if target is not None and waits is not False:
        floors = _below(case, node, mount)
        if isinstance(floors, str):
            return floors
        if waits:
            slow += floors
    evidence = f"{mount.path} on {node} {' and '.join(slow)}" if slow else "none is below its floor"
    return Observation(
        subject=Subject(node=node, thing=mount.path),
        verdict=Verdict.ATTENTION if slow else Verdict.OK,
        measured=mount.answered_s,
        target=bound,
        evidence=evidence,
    )


def _below(case: Case, node: str, mount: MountFact) -> list[str] | str:
    """Return the floors that it does not reach, or why that is unknown."""
    target = target_of(case, mount.path)
    assert target is not None
    measured = rates(case, node, mount)
    if measured is None:
        return _TOO_EARLY if target.read_bytes_s or target.write_bytes_s else []
    moved = (measured.read_bytes_s or 0.0) + (measured.write_bytes_s or 0.0)
    found = []
    for rate, floor, word in (
        (measured.read_bytes_s, target.read_bytes_s, "reads"),
        (measured.write_bytes_s, target.write_bytes_s, "writes"),
    ):
        # Only the dominant direction is what the job waits for.
        if rate is not None and floor and rate * 2 >= moved and moved > 0 and rate < floor:
            found.append(
                f"{word} {format_rate(rate)} of {format_rate(floor)} while the job waits for it"
            )
    return found


_TOO_EARLY = "its rate needs two looks; ask again in a few seconds"
