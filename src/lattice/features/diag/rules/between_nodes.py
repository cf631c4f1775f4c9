"""Traffic between pairs of nodes, which is not measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.features.diag.model import Area, Case, Finding, Lack
from lattice.features.diag.rules.findings import unknown


class BetweenNodes:
    """Reads nothing yet: no source has traffic by pair of nodes."""

    name, title, area, order = "between_nodes", "Bandwidth between nodes", Area.NETWORK, 160
    explains = frozenset[str]()
    reason = "ports count what passes, not from which node to which"

    def judge(self, case: Case) -> Iterator[Finding]:
        if len(case.nodes) > 1:
            yield unknown(self, case, self.reason, Lack.NOT_OFFERED, ())
