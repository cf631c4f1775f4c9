"""Facts about the surroundings of a job in slices: from its guests, and nothing of the host."""

from __future__ import annotations

from collections.abc import Callable

from lattice.agent.slices import SliceReader
from lattice.base.errors import Unavailable
from lattice.domain.guest_report import CheckedReport
from lattice.domain.jobfacts import FactAbsence, FactKind, GpuFact
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.slices import OnHost, Unplaced
from lattice.features.diag.node.facts import FoundFacts, NetworkFound
from lattice.probes.facts.guests import (
    NOT_ASKED,
    NOT_IN_GUEST,
    guest_gpu_facts,
    guest_link_facts,
)


class SliceFacts:
    """Answers None for a job on the host. Raises `Unavailable` for a guest that does not report."""

    def __init__(self, reader: SliceReader, now: Callable[[], float]) -> None:
        self._reader = reader
        self._now = now

    def network(self, identity: JobIdentity) -> NetworkFound | None:
        """The network ports of the guests."""
        reports = self._reports(identity)
        if reports is None:
            return None
        absent = FactAbsence(FactKind.TRANSPORT, NOT_IN_GUEST)
        return NetworkFound(guest_link_facts(reports), None, (absent,))

    def gpus(self, identity: JobIdentity) -> FoundFacts[GpuFact] | None:
        """The GPUs of the guests."""
        reports = self._reports(identity)
        return None if reports is None else FoundFacts(*guest_gpu_facts(reports, self._now()))

    def _reports(self, identity: JobIdentity) -> tuple[CheckedReport, ...] | None:
        site = self._reader.site(identity.job_id)
        if isinstance(site, OnHost):
            return None
        if isinstance(site, Unplaced):
            raise Unavailable(site.reason)
        reports = []
        for each in self._reader.guests_of(identity.job_id) or ():
            if each.last is None or each.last.report is None:
                raise Unavailable(each.last.reason if each.last is not None else NOT_ASKED)
            reports.append(each.last.report)
        return tuple(reports)
