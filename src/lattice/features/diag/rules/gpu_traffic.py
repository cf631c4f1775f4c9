"""NVLink traffic compared with its capacity, and SM occupancy. Pure.

Neither can be a fault; they complete the page about GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from lattice.domain.measured import FIRST_READING
from lattice.domain.metric import Provenance
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.domain.telemetry import Coverage
from lattice.features.diag.model import Area, Case, Finding, Lack, Sense, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    MissingObservation,
    Observation,
    each_snapshot,
    findings,
    grown,
    lacking,
    passed_s,
)

_BYTES, _BUSY, _CARDS = (
    "gpu_nvlink_bytes_total",
    "gpu_sm_occupancy_percent",
    "gpu_utilization_percent",
)


@dataclass(frozen=True, slots=True)
class _Moved:
    """The traffic of one GPU per second in both directions, and the capacity of its links."""

    subject: Subject
    rate: float
    most: float | None


class GpuTraffic:
    """Reads NVLink's counter and the speed of its links, and DCGM's occupancy."""

    name, title, area, order = "gpu_traffic", "NVLink", Area.GPU, 260
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        moved: list[_Moved] = []
        unseen: list[MissingObservation] = []
        busy: list[tuple[Subject, float]] = []
        for node, snapshot in each_snapshot(case):
            of_node = list(_moved(case, node, snapshot))
            moved += of_node
            if not of_node and snapshot.now.of(_CARDS):
                unseen.append(_unseen(node, snapshot))
            busy += [
                (Subject(node=node, gpu=each.label("gpu_uuid")), each.value)
                for each in snapshot.now.of(_BUSY)
            ]
        if moved or unseen:
            template = FindingTemplate(sense=Sense.OF, unit="bytes/s")
            yield from findings(self, case, [*_seen(moved), *unseen], template)
        if busy:
            yield _occupancy(self, case, busy)


def _moved(case: Case, node: str, snapshot: NodeSnapshot) -> Iterator[_Moved]:
    over_s = passed_s(snapshot)
    facts = case.facts.get(node)
    most = {each.uuid: each.nvlink_bytes_s for each in facts.gpus} if facts is not None else {}
    for each in snapshot.now.of(_BYTES):
        more, uuid = grown(snapshot, each), each.label("gpu_uuid")
        if more is not None and over_s:
            yield _Moved(Subject(node=node, gpu=uuid), more / over_s, most.get(uuid))


def _unseen(node: str, snapshot: NodeSnapshot) -> MissingObservation:
    if snapshot.now.of(_BYTES):
        # There is a counter, but no earlier value yet.
        return MissingObservation(node=node, reason=FIRST_READING, lack=Lack.TOO_EARLY)
    return lacking(node, snapshot, _BYTES)


def _seen(moved: Sequence[_Moved]) -> list[Observation]:
    seen = [Observation(subject=each.subject, measured=each.rate) for each in moved]
    if not moved:
        return seen
    most = [each.most for each in moved if each.most is not None]
    all_known = len(most) == len(moved)
    several = f"{len(moved)} GPUs" if len(moved) > 1 else "one GPU"
    unsaid = "" if all_known else "; what the links of all of them can carry is not told"
    seen[0] = replace(
        seen[0],
        measured=fmean(each.rate for each in moved),
        target=fmean(most) if all_known else None,
        evidence=f"both ways, on average over {several}{unsaid}",
    )
    return seen


def _occupancy(rule: GpuTraffic, case: Case, values: Sequence[tuple[Subject, float]]) -> Finding:
    return Finding(
        rule=rule.name,
        title="SM occupancy",
        area=rule.area,
        verdict=Verdict.OK,
        subjects=tuple(subject for subject, _ in values),
        measured=fmean(value for _, value in values),
        target=100.0,
        sense=Sense.OF,
        unit="%",
        source=Provenance.SITE_EXPORTER.value,
        evidence=f"on average over {len(values)} GPUs",
        covered=Coverage(len({subject.node for subject, _ in values}), len(case.nodes)),
    )
