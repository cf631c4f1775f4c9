"""A congested network: packets wait, or a switch marks them. Pure.

Each kind of port counts it differently. InfiniBand counts ticks with data that it could not send;
Slingshot counts pauses; TCP counts packets that a switch marked (ECN).
"""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.jobfacts import LinkCounts, LinkFact, TransportFact
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    MissingObservation,
    Observation,
    each_facts,
    findings,
)
from lattice.features.diag.rules.links import counted, of_links

_LEAST_PACKETS = 1000.0
_BUSY_SHARE = 0.05
_TICKS, _NANOSECONDS = "ticks", "ns"


class Congestion:
    """Reads each port's count of waits, and the ECN marks that TCP received."""

    name, title, area, order = "congestion", "Congestion", Area.NETWORK, 140
    explains = frozenset({"straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        bound = case.targets.congestion_percent

        def judge(node: str, link: LinkFact) -> Judged | None:
            counts = counted(case, node, link)
            if counts is None or counts.waits is None:
                return MissingObservation(node=node, reason="its ports do not count waiting")
            return _one(node, link, counts, bound)

        judged = of_links(case, judge)
        judged += [
            marked
            for node, facts in each_facts(case)
            if (marked := _marked(node, facts.transport, bound)) is not None
        ]
        template = FindingTemplate(
            target=bound,
            unit="%",
            remedy="Others share the way between these nodes: `sbatch --switches=1` keeps a "
            "job below one switch, and `--exclusive` keeps others off its nodes.",
            nothing="no node told facts",
        )
        yield from findings(self, case, judged, template)


def _one(node: str, link: LinkFact, counts: LinkCounts, bound: float) -> Observation:
    waits = counts.waits or 0.0
    share = _share(link, counts, waits)
    busy = _is_busy(link, counts) and (counts.packets or _LEAST_PACKETS) >= _LEAST_PACKETS
    unit = f" {link.waits_unit}" if link.waits_unit else ""
    evidence = f"{link.name} on {node} waited {share:.2g} % ({waits:.0f}{unit})"
    return Observation(
        subject=Subject(node=node, thing=link.name),
        verdict=Verdict.ATTENTION if busy and share > bound else Verdict.OK,
        measured=share,
        evidence=evidence if waits else "no port had to wait",
    )


def _share(link: LinkFact, counts: LinkCounts, waits: float) -> float:
    """In percent: of the time, of the packets, or of the possible transmissions."""
    if link.waits_unit == _NANOSECONDS:
        whole = counts.seconds * 1e9
    elif link.waits_unit == _TICKS:
        # One tick is the time of one word of four bytes.
        whole = waits + (counts.tx_bytes or 0.0) / 4
    else:
        whole = counts.packets or 0.0
    return min(100.0, 100.0 * waits / whole) if whole else 0.0


def _is_busy(link: LinkFact, counts: LinkCounts) -> bool:
    """A nearly idle port is not congested, whatever it counts."""
    moved = (counts.tx_bytes or 0.0) + (counts.rx_bytes or 0.0)
    if not link.speed_bits or not counts.seconds:
        return True
    return moved * 8 / counts.seconds >= _BUSY_SHARE * link.speed_bits


def _marked(node: str, transport: TransportFact | None, bound: float) -> Observation | None:
    if transport is None or transport.seconds is None:
        return None
    marks, packets = transport.ecn_marks, transport.received_packets
    if marks is None or not packets:
        return None
    share = 100.0 * marks / packets
    sick = packets >= _LEAST_PACKETS and share > bound
    return Observation(
        subject=Subject(node=node),
        verdict=Verdict.ATTENTION if sick else Verdict.OK,
        measured=share,
        evidence=f"switches marked {share:.2g} % of the packets that {node} received (ECN)",
    )
