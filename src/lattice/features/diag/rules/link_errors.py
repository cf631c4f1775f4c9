"""A link that loses packets to errors. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.jobfacts import LinkFact
from lattice.domain.nodelook import NodeSight
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.linking import counted, of_links
from lattice.features.diag.rules.saying import Line, Seen, Unseen, each_sight, findings, grown

_FEWEST_ERRORS = 5.0
_MOST_A_MINUTE = 1.0


class LinkErrors:
    """Reads each port's errors and packets of late, and the job's own between two looks."""

    name, title, area = "link_errors", "Link errors", Area.NETWORK
    explains = frozenset({"retransmits", "straggler", "congestion"})

    def judge(self, case: Case) -> Iterator[Finding]:
        bound = case.targets.link_error_percent

        def judged(node: str, link: LinkFact) -> Seen | Unseen | None:
            counts = counted(case, node, link)
            if counts is None or counts.errors is None:
                return Unseen(node=node, reason="its ports do not count errors since the job began")
            if counts.packets is None:
                return _by_time(node, link.name, counts.errors, counts.seconds)
            return _one(node, link.name, counts.errors, counts.packets, bound)

        seen, unseen = of_links(case, judged)
        for node, sight in each_sight(case):
            told = _between(node, sight, bound)
            if told is not None:
                seen.append(told)
        yield from findings(
            self,
            case,
            seen,
            unseen,
            Line(
                target=bound,
                unit="%",
                remedy="Tell the site: a cable, a port or a driver is at fault, not the job. Leave "
                "the node out next time (`sbatch --exclude=NODE`).",
            ),
        )


def _one(node: str, name: str, errors: float, packets: float, bound: float) -> Seen:
    share = 100.0 * errors / packets if packets else (100.0 if errors else 0.0)
    sick = errors >= _FEWEST_ERRORS and share > bound
    words = (
        f"{name} on {node} lost {errors:.0f} of {packets:.0f} packets to errors ({share:.2g} %)"
        if errors
        else "no link has lost a packet to errors"
    )
    return Seen(
        subject=Subject(node=node, thing=name),
        verdict=Verdict.BAD if sick else Verdict.OK,
        measured=share,
        words=words,
    )


def _by_time(node: str, name: str, errors: float, seconds: float) -> Seen:
    """Of a port that does not count packets: how often is too often."""
    a_minute = 60.0 * errors / seconds if seconds else 0.0
    sick = errors >= _FEWEST_ERRORS and a_minute > _MOST_A_MINUTE
    words = f"{name} on {node} counted {errors:.0f} errors, {a_minute:.2g} a minute"
    return Seen(
        subject=Subject(node=node, thing=name),
        verdict=Verdict.BAD if sick else Verdict.OK,
        words=words if errors else "no link has lost a packet to errors",
    )


def _between(node: str, sight: NodeSight, bound: float) -> Seen | None:
    packets = {each.label("scope"): each for each in sight.now.of("network_packets_total")}
    errors = {each.label("scope"): each for each in sight.now.of("network_errors_total")}
    for scope in sorted(packets.keys() & errors.keys()):
        sent, lost = grown(sight, packets[scope]), grown(sight, errors[scope])
        if sent is not None and lost is not None:
            whose = "the job's network" if scope == "job" else "the network"
            return _one(node, whose, lost, sent, bound)
    return None
