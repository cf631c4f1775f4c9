"""Traffic between GPUs compared with the capacity of their links, and SM occupancy. Pure.

The links are NVLink, or XGMI of AMD's cards. Neither figure can be a fault; they complete the page
about GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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

_BUSY, _CARDS = "gpu_sm_occupancy_percent", "gpu_utilization_percent"
_LINKS = {"gpu_nvlink_bytes_total": "NVLink", "gpu_xgmi_bytes_total": "XGMI"}
"""The counter of each kind of link, and its name."""


@dataclass(frozen=True, slots=True)
class _Moved:
    """The traffic of one GPU per second in both directions, and the capacity of its links."""

    subject: Subject
    rate: float
    most: float | None


class GpuTraffic:
    """Reads the counter and the speed of the links, and DCGM's occupancy."""

    name, title, area, order = "gpu_traffic", "NVLink", Area.GPU, 260
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        for metric, title in _LINKS.items():
            for each in self._over(metric, case):
                yield replace(each, title=title)
        busy = [
            (Subject(node=node, gpu=each.label("gpu_uuid")), each.value)
            for node, snapshot in each_snapshot(case)
            for each in snapshot.now.of(_BUSY)
        ]
        if busy:
            yield _occupancy(self, case, busy)

    def _over(self, metric: str, case: Case) -> Iterator[Finding]:
        """The findings of the nodes whose cards have this kind of link."""
        moved: list[_Moved] = []
        unseen: list[MissingObservation] = []
        for node, snapshot in each_snapshot(case):
            if _links_of(snapshot) != metric:
                continue
            of_node = list(_moved(case, node, snapshot, metric))
            moved += of_node
            if not of_node and snapshot.now.of(_CARDS):
                unseen.append(_unseen(node, snapshot, metric))
        if moved or unseen:
            template = FindingTemplate(sense=Sense.OF, unit="bytes/s")
            yield from findings(self, case, [*_seen(moved), *unseen], template)


def _links_of(snapshot: NodeSnapshot) -> str:
    """The counter of the links that the cards of a node have, or would have."""
    measured = (each for each in _LINKS if snapshot.now.of(each))
    explained = (each for each in _LINKS if snapshot.now.absence(each))
    return next(chain(measured, explained), next(iter(_LINKS)))


def _moved(case: Case, node: str, snapshot: NodeSnapshot, metric: str) -> Iterator[_Moved]:
    over_s = passed_s(snapshot)
    facts = case.facts.get(node)
    most = {each.uuid: each.nvlink_bytes_s for each in facts.gpus} if facts is not None else {}
    for each in snapshot.now.of(metric):
        more, uuid = grown(snapshot, each), each.label("gpu_uuid")
        if more is not None and over_s:
            yield _Moved(Subject(node=node, gpu=uuid), more / over_s, most.get(uuid))


def _unseen(node: str, snapshot: NodeSnapshot, metric: str) -> MissingObservation:
    if snapshot.now.of(metric):
        # There is a counter, but no earlier value yet.
        return MissingObservation(node=node, reason=FIRST_READING, lack=Lack.TOO_EARLY)
    return lacking(node, snapshot, metric)


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
