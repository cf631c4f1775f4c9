"""What the nodes' agents lack themselves: their helper, room on their disk. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.features.diag.model import Area, Case, Finding, Lack
from lattice.features.diag.rules.findings import unknown


class AgentLacks:
    """Reads what each agent reported about itself. It says nothing of the job."""

    name, title, area, order = "agent_lacks", "Agent", Area.JOB, 55
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        by_reason: dict[str, list[str]] = {}
        for node in case.nodes:
            for reason in case.lacks.get(node, ()):
                by_reason.setdefault(reason, []).append(node)
        for reason, nodes in by_reason.items():
            yield unknown(self, case, reason, Lack.FAILED, nodes)
