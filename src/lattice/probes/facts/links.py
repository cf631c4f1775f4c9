"""All links of a node and its TCP, and how much they counted since a job was first seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lattice.domain.jobfacts import (
    FactAbsence,
    FactKind,
    LinkCounts,
    LinkFact,
    TransportFact,
)
from lattice.probes.facts.ethernet import ethernet_links
from lattice.probes.facts.infiniband import infiniband_links
from lattice.probes.facts.slingshot import slingshot_links
from lattice.probes.facts.transport import transport_of

_COUNTED = ("rx_bytes", "tx_bytes", "packets", "errors", "waits", "downs")
_SEGMENTS = ("sent_segments", "retransmits", "received_packets", "ecn_marks")
NO_LINKS = "the node has no network port that was ever used"
NO_TRANSPORT = "the kernel does not tell it"


@dataclass(frozen=True, slots=True)
class NetworkLook:
    """One look. `at_s` is a steady time."""

    at_s: float
    links: tuple[LinkFact, ...]
    transport: TransportFact | None

    def absences(self) -> tuple[FactAbsence, ...]:
        """Why there is nothing of one kind."""
        links = () if self.links else (FactAbsence(FactKind.LINKS, NO_LINKS),)
        transport = () if self.transport else (FactAbsence(FactKind.TRANSPORT, NO_TRANSPORT),)
        return links + transport


@dataclass(frozen=True, slots=True)
class NetworkProbe:
    """Reads them. Blocks for as long as drivers take."""

    proc: Path
    sys: Path

    def look(self, at_s: float) -> NetworkLook:
        links = (
            *infiniband_links(self.sys),
            *slingshot_links(self.sys),
            *ethernet_links(self.sys),
        )
        return NetworkLook(at_s, links, transport_of(self.proc))


def since(before: NetworkLook, now: NetworkLook) -> NetworkLook:
    """The same with what was counted between the two. A port that fell was begun anew: unknown."""
    earlier = {(each.kind, each.name): each for each in before.links}
    seconds = now.at_s - before.at_s
    if seconds <= 0:
        return now
    links = tuple(
        replace(each, of_job=_counts(earlier.get((each.kind, each.name)), each, seconds))
        for each in now.links
    )
    return NetworkLook(now.at_s, links, _transport(before.transport, now.transport, seconds))


def _counts(before: LinkFact | None, now: LinkFact, seconds: float) -> LinkCounts | None:
    if before is None:
        return None
    return LinkCounts(seconds=seconds, **_grown(before, now, _COUNTED))


def _transport(
    before: TransportFact | None, now: TransportFact | None, seconds: float
) -> TransportFact | None:
    if before is None or now is None:
        return now
    return TransportFact(seconds=seconds, **_grown(before, now, _SEGMENTS))


def _grown(before: object, now: object, names: Sequence[str]) -> dict[str, float | None]:
    grown: dict[str, float | None] = {}
    for name in names:
        was, is_now = getattr(before, name), getattr(now, name)
        fits = was is not None and is_now is not None and is_now >= was
        grown[name] = is_now - was if fits else None
    return grown
