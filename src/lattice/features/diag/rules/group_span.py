"""The switches between the nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.telemetry import Coverage
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict


class GroupSpan:
    """Reads Slurm's topology."""

    name, title, area, order = "group_span", "Switch groups", Area.NETWORK, 80
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        groups = sorted({each for each in case.groups.values() if each})
        if not groups:
            # The site has configured no topology.
            return
        named = ", ".join(groups[:8]) + (", …" if len(groups) > 8 else "")
        yield Finding(
            rule=self.name,
            title=self.title,
            area=self.area,
            verdict=Verdict.OK,
            subjects=tuple(Subject(thing=each) for each in groups),
            measured=float(len(groups)),
            source="slurm_topology",
            evidence=f"spans {len(groups)} ({named})",
            covered=Coverage(len(case.groups), len(case.nodes)),
        )
