"""A GPU with a memory error that could not be corrected, or an error of the driver (XID). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lattice.domain.alert import Phase, Severity
from lattice.domain.alert import Rule as AlertRule
from lattice.domain.nodelook import NodeSight
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.cards import Card, health_of
from lattice.features.diag.rules.saying import (
    Line,
    Seen,
    Unseen,
    card,
    each_sight,
    findings,
    grown,
    lacking,
    per_gpu,
)

_OF_THE_JOB = frozenset({"13", "31", "43", "45"})
_TELL_SITE = (
    "Results since then may be wrong: go back to a checkpoint from before, and tell the site. "
    "Leave the node out next time (`sbatch --exclude=NODE`)."
)
_PROGRAM = (
    "Mostly an error of the program: run it with CUDA_LAUNCH_BLOCKING=1, or under "
    "compute-sanitizer."
)


class GpuErrors:
    """Reads counts of uncorrected errors and XIDs since the look before, and the node's alerts."""

    name, title, area = "gpu_errors", "GPU errors", Area.GPU
    explains = frozenset({"gpu_hang", "job_hang", "straggler", "gpu_idle", "data_loader"})

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        seen: list[Seen] = []
        unseen: list[Unseen] = []
        for node, sight in each_sight(case):
            found = list(_sick(case, node, sight))
            cards = per_gpu(sight, "gpu_ecc_uncorrected_total")
            seen += found or [
                Seen(subject=Subject(node=node, gpu=uuid), measured=0.0, words=_WELL)
                for uuid in cards
            ]
            if not found and not cards:
                unseen.append(lacking(node, sight, "gpu_ecc_uncorrected_total"))
        yield from findings(self, case, seen, unseen, Line(target=0.0, remedy=_TELL_SITE))


_WELL = "no memory error that could not be corrected, and no XID"


def cards_with_errors(case: Case) -> frozenset[Card]:
    """Those of which this rule tells."""
    return frozenset(
        (node, each.subject.gpu)
        for node, sight in each_sight(case)
        for each in _sick(case, node, sight)
    )


def _sick(case: Case, node: str, sight: NodeSight) -> Iterator[Seen]:
    for each in _met(node, sight):
        judged = health_of(case, node, each.subject.gpu)
        yield replace(each, words=f"{each.words}; it is judged {judged}") if judged else each


def _met(node: str, sight: NodeSight) -> Iterator[Seen]:
    told: set[tuple[str, str]] = set()
    for alert in sight.firing:
        if alert.rule in {AlertRule.ECC, AlertRule.XID} and alert.phase is Phase.FIRING:
            uuid, _, xid = alert.subject.partition("/xid")
            told.add((uuid, xid))
            program = alert.severity is Severity.WARNING
            yield _seen(node, uuid, alert.value, f"on {node}: {alert.words}", program=program)
    for each in sight.now.of("gpu_ecc_uncorrected_total"):
        uuid, more = each.label("gpu_uuid"), grown(sight, each)
        if more and (uuid, "") not in told:
            words = f"{card(uuid)} on {node} met {more:.0f} memory errors it could not correct"
            yield _seen(node, uuid, more, words, program=False)
    for each in sight.now.of("gpu_xid_total"):
        uuid, xid, more = each.label("gpu_uuid"), each.label("xid"), grown(sight, each)
        if more and (uuid, xid) not in told:
            words = f"the driver reported XID {xid} of {card(uuid)} on {node}"
            yield _seen(node, uuid, more, words, program=xid in _OF_THE_JOB)


def _seen(node: str, uuid: str, count: float | None, words: str, *, program: bool) -> Seen:
    return Seen(
        subject=Subject(node=node, gpu=uuid),
        verdict=Verdict.ATTENTION if program else Verdict.BAD,
        measured=count,
        words=words.rstrip("."),
        remedy=_PROGRAM if program else _TELL_SITE,
    )
