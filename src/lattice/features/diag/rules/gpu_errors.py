"""A GPU with an uncorrectable memory error, or a driver error (XID). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import AlertRule
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.findings import (
    Card,
    FindingTemplate,
    Judged,
    Observation,
    card,
    each_snapshot,
    findings,
    firing,
    grown,
    lacking,
    per_gpu,
    with_health,
)
from lattice.observe.conditions import is_program_xid

_HARDWARE = (
    "Results since then may be wrong: go back to a checkpoint from before, and tell the site. "
    "Leave the node out next time (`sbatch --exclude=NODE`)."
)
_PROGRAM = (
    "Mostly an error of the program: run it with CUDA_LAUNCH_BLOCKING=1, or under "
    "compute-sanitizer."
)


class GpuErrors:
    """Reads uncorrected errors and XIDs since the last look, and the node's alerts."""

    name, title, area, order = "gpu_errors", "GPU errors", Area.GPU, 200
    explains = frozenset({"gpu_hang", "job_hang", "straggler", "gpu_idle", "data_loader"})

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        judged: list[Judged] = []
        for node, snapshot in each_snapshot(case):
            found = [with_health(case, each) for each in _met(node, snapshot)]
            cards = per_gpu(snapshot, "gpu_ecc_uncorrected_total")
            judged += found or [
                Observation(subject=Subject(node=node, gpu=uuid), measured=0.0, evidence=_WELL)
                for uuid in cards
            ]
            if not found and not cards:
                judged.append(lacking(node, snapshot, "gpu_ecc_uncorrected_total"))
        yield from findings(self, case, judged, FindingTemplate(target=0.0, remedy=_HARDWARE))


_WELL = "no memory error that could not be corrected, and no XID"


def cards_with_errors(case: Case) -> frozenset[Card]:
    """Return the GPUs that this rule reports."""
    return frozenset(
        (node, each.subject.gpu)
        for node, snapshot in each_snapshot(case)
        for each in _met(node, snapshot)
    )


def _met(node: str, snapshot: NodeSnapshot) -> Iterator[Observation]:
    alerted: set[tuple[str, str]] = set()
    for alert in firing(snapshot, AlertRule.ECC, AlertRule.XID):
        uuid, _, xid = alert.subject.partition("/xid")
        alerted.add((uuid, xid))
        evidence = f"on {node}: {alert.text}"
        yield _seen(node, uuid, alert.value, evidence, program=is_program_xid(xid))
    for each in snapshot.now.of("gpu_ecc_uncorrected_total"):
        uuid, more = each.label("gpu_uuid"), grown(snapshot, each)
        if more and (uuid, "") not in alerted:
            evidence = f"{card(uuid)} on {node} met {more:.0f} memory errors it could not correct"
            yield _seen(node, uuid, more, evidence, program=False)
    for each in snapshot.now.of("gpu_xid_total"):
        uuid, xid, more = each.label("gpu_uuid"), each.label("xid"), grown(snapshot, each)
        if more and (uuid, xid) not in alerted:
            evidence = f"the driver reported XID {xid} of {card(uuid)} on {node}"
            yield _seen(node, uuid, more, evidence, program=is_program_xid(xid))


def _seen(
    node: str, uuid: str, count: float | None, evidence: str, *, program: bool
) -> Observation:
    return Observation(
        subject=Subject(node=node, gpu=uuid),
        verdict=Verdict.ATTENTION if program else Verdict.BAD,
        measured=count,
        evidence=evidence.rstrip("."),
        remedy=_PROGRAM if program else _HARDWARE,
    )
