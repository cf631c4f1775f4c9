"""Nodes that do not answer: their state is unknown, not good. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.moment import age
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject
from lattice.features.diag.rules.findings import FindingTemplate, Observation, findings, unknown

_STALE_LOOKS = 3.0


class NodeSilent:
    """Reads which nodes answered, and the age of their measurements."""

    name, title, area, order = "node_silent", "Nodes that answer", Area.JOB, 10
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        answered: list[Observation] = []
        reasons: dict[str, list[str]] = {}
        for node in case.nodes:
            reason = _silence(case, node)
            if reason:
                reasons.setdefault(reason, []).append(node)
            else:
                answered.append(
                    Observation(subject=Subject(node=node), evidence="every node answers")
                )
        for reason, nodes in reasons.items():
            yield unknown(self, case, reason, Lack.SILENT, nodes)
        if answered and not reasons:
            yield from findings(self, case, answered, FindingTemplate())
        if case.no_traces:
            yield unknown(self, case, case.no_traces, Lack.SILENT, ())


def _silence(case: Case, node: str) -> str:
    snapshot, silence = case.sights.get(node), case.silences.get(node)
    if snapshot is not None and node in case.facts:
        old_s = case.now - snapshot.now.time
        if old_s > _STALE_LOOKS * max(case.interval_s, snapshot.now.resolution_s):
            return f"what it measured is {age(old_s)} old"
        return ""
    if silence is None:
        return "its agent has told nothing" if snapshot is None else "its agent has told no facts"
    since = f", for {age(max(0.0, case.now - silence.since))}" if silence.since is not None else ""
    return f"{silence.reason}{since}"
