"""A link that loses packets to errors. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.jobfacts import LinkFact
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Subject, Targets, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    MissingObservation,
    Observation,
    each_snapshot,
    findings,
    grown,
)
from lattice.features.diag.rules.links import counted, of_links
from lattice.observe.conditions import is_network_lossy, packet_error_percent

_FEWEST_ERRORS = 5.0
_MOST_A_MINUTE = 1.0


class LinkErrors:
    """Reads each port's recent errors and packets, and the job's own between two looks."""

    name, title, area, order = "link_errors", "Link errors", Area.NETWORK, 120
    explains = frozenset({"retransmits", "straggler", "congestion"})

    def judge(self, case: Case) -> Iterator[Finding]:
        targets = case.targets

        def judge(node: str, link: LinkFact) -> Judged | None:
            counts = counted(case, node, link)
            if counts is None or counts.errors is None:
                return MissingObservation(
                    node=node, reason="its ports do not count errors since the job began"
                )
            packets = counts.packets
            share = None
            if packets is not None:
                share = packet_error_percent(counts.errors, packets, targets)
            if packets is None or share is None:
                return _by_time(node, link.name, counts.errors, counts.seconds)
            sick = counts.errors >= _FEWEST_ERRORS and is_network_lossy(share, targets)
            return _one(node, link.name, counts.errors, packets, share, sick=sick)

        judged = of_links(case, judge)
        judged += [
            between
            for node, snapshot in each_snapshot(case)
            if (between := _between(node, snapshot, targets)) is not None
        ]
        template = FindingTemplate(
            target=targets.network_error_percent,
            unit="%",
            remedy="Tell the site: a cable, a port or a driver is at fault, not the job. Leave "
            "the node out next time (`sbatch --exclude=NODE`).",
        )
        yield from findings(self, case, judged, template)


def _one(
    node: str, name: str, errors: float, packets: float, share: float, *, sick: bool
) -> Observation:
    evidence = (
        f"{name} on {node} lost {errors:.0f} of {packets:.0f} packets to errors ({share:.2g} %)"
        if errors
        else "no link has lost a packet to errors"
    )
    return Observation(
        subject=Subject(node=node, thing=name),
        verdict=Verdict.BAD if sick else Verdict.OK,
        measured=share,
        evidence=evidence,
    )


def _by_time(node: str, name: str, errors: float, seconds: float) -> Observation:
    """For a port that counts no packets, or too few: judge by errors per minute."""
    a_minute = 60.0 * errors / seconds if seconds else 0.0
    sick = errors >= _FEWEST_ERRORS and a_minute > _MOST_A_MINUTE
    evidence = f"{name} on {node} counted {errors:.0f} errors, {a_minute:.2g} a minute"
    return Observation(
        subject=Subject(node=node, thing=name),
        verdict=Verdict.BAD if sick else Verdict.OK,
        evidence=evidence if errors else "no link has lost a packet to errors",
    )


def _between(node: str, snapshot: NodeSnapshot, targets: Targets) -> Observation | None:
    packets = {each.label("scope"): each for each in snapshot.now.of("network_packets_total")}
    errors = {each.label("scope"): each for each in snapshot.now.of("network_errors_total")}
    for scope in sorted(packets.keys() & errors.keys()):
        sent, lost = grown(snapshot, packets[scope]), grown(snapshot, errors[scope])
        if sent is None or lost is None:
            continue
        share = packet_error_percent(lost, sent, targets)
        if share is None:
            return None
        name = "the job's network" if scope == "job" else "the network"
        return _one(node, name, lost, sent, share, sick=is_network_lossy(share, targets))
    return None
