"""What goes over NVLink, and how busy the processors of the cards are; no more than that. Pure.

Neither has a value that would be wrong: they are here because a page about GPUs lacks them
otherwise. No node that has neither is told of.
"""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.metric import Provenance
from lattice.domain.telemetry import Coverage
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.saying import each_sight, grown, passed_s


class GpuTraffic:
    """Reads NVLink's counter and DCGM's occupancy."""

    name, title, area = "gpu_traffic", "NVLink", Area.GPU
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        rates: list[tuple[Subject, float]] = []
        busy: list[tuple[Subject, float]] = []
        for node, sight in each_sight(case):
            over_s = passed_s(sight)
            for each in sight.now.of("gpu_nvlink_bytes_total"):
                more = grown(sight, each)
                if more is not None and over_s:
                    subject = Subject(node=node, gpu=each.label("gpu_uuid"))
                    rates.append((subject, more / over_s))
            busy += [
                (Subject(node=node, gpu=each.label("gpu_uuid")), each.value)
                for each in sight.now.of("gpu_sm_occupancy_percent")
            ]
        if rates:
            yield _line(self, case, self.title, rates, "bytes/s", Provenance.HOST_LOCAL_PROBE)
        if busy:
            yield _line(self, case, "SM occupancy", busy, "%", Provenance.SITE_EXPORTER)


def _line(
    rule: GpuTraffic,
    case: Case,
    title: str,
    values: list[tuple[Subject, float]],
    unit: str,
    source: Provenance,
) -> Finding:
    mean = sum(value for _, value in values) / len(values)
    return Finding(
        rule=rule.name,
        title=title,
        area=rule.area,
        verdict=Verdict.OK,
        subjects=tuple(subject for subject, _ in values),
        measured=mean,
        unit=unit,
        source=source.value,
        evidence=f"on average over {len(values)} GPUs",
        covered=Coverage(len({subject.node for subject, _ in values}), len(case.nodes)),
    )
