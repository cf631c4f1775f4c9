"""A GPU with an uncorrectable memory error, or a driver error (XID). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lattice.domain.alert import AlertRule, Phase
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.cards import Card, health_of
from lattice.features.diag.rules.saying import (
    FindingTemplate,
    MissingObservation,
    Observation,
    card,
    each_sight,
    findings,
    grown,
    lacking,
    per_gpu,
)
from lattice.observe.conditions import is_program_xid

_TELL_SITE = (
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
        seen: list[Observation] = []
        unseen: list[MissingObservation] = []
        for node, sight in each_sight(case):
            found = list(_sick(case, node, sight))
            cards = per_gpu(sight, "gpu_ecc_uncorrected_total")
            seen += found or [
                Observation(subject=Subject(node=node, gpu=uuid), measured=0.0, words=_WELL)
                for uuid in cards
            ]
            if not found and not cards:
                unseen.append(lacking(node, sight, "gpu_ecc_uncorrected_total"))
        yield from findings(
            self, case, seen, unseen, FindingTemplate(target=0.0, remedy=_TELL_SITE)
        )


_WELL = "no memory error that could not be corrected, and no XID"


def cards_with_errors(case: Case) -> frozenset[Card]:
    """Return the GPUs that this rule reports."""
    return frozenset(
        (node, each.subject.gpu)
        for node, sight in each_sight(case)
        for each in _sick(case, node, sight)
    )


def _sick(case: Case, node: str, sight: NodeSnapshot) -> Iterator[Observation]:
    for each in _met(node, sight):
        judged = health_of(case, node, each.subject.gpu)
        yield replace(each, words=f"{each.words}; it is judged {judged}") if judged else each


def _met(node: str, sight: NodeSnapshot) -> Iterator[Observation]:
    told: set[tuple[str, str]] = set()
    for alert in sight.firing:
        if alert.rule in {AlertRule.ECC, AlertRule.XID} and alert.phase is Phase.FIRING:
            uuid, _, xid = alert.subject.partition("/xid")
            told.add((uuid, xid))
            words = f"on {node}: {alert.words}"
            yield _seen(node, uuid, alert.value, words, program=is_program_xid(xid))
    for each in sight.now.of("gpu_ecc_uncorrected_total"):
        uuid, more = each.label("gpu_uuid"), grown(sight, each)
        if more and (uuid, "") not in told:
            words = f"{card(uuid)} on {node} met {more:.0f} memory errors it could not correct"
            yield _seen(node, uuid, more, words, program=False)
    for each in sight.now.of("gpu_xid_total"):
        uuid, xid, more = each.label("gpu_uuid"), each.label("xid"), grown(sight, each)
        if more and (uuid, xid) not in told:
            words = f"the driver reported XID {xid} of {card(uuid)} on {node}"
            yield _seen(node, uuid, more, words, program=is_program_xid(xid))


def _seen(node: str, uuid: str, count: float | None, words: str, *, program: bool) -> Observation:
    return Observation(
        subject=Subject(node=node, gpu=uuid),
        verdict=Verdict.ATTENTION if program else Verdict.BAD,
        measured=count,
        words=words.rstrip("."),
        remedy=_PROGRAM if program else _TELL_SITE,
    )
