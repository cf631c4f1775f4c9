"""The checks of agents and their nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TypeVar

from lattice.base.moment import age
from lattice.base.sizes import size_text
from lattice.domain.node import Condition
from lattice.domain.nodeset import NodeSet
from lattice.domain.presence import Presence, is_doubled
from lattice.domain.release import MOST_AHEAD, MOST_BEHIND, Fit, fit_of
from lattice.features.doctor.model import Check, Topic
from lattice.features.doctor.service.facts import AgentsFacts, AgentTrust
from lattice.features.doctor.service.measured import Inspected, milliseconds

T = TypeVar("T")
CLOCK_OFF_S = 2.0
_SPOOL_SHARE = 0.5
_LEAST_FREE_BYTES = 512 * 1024 * 1024
_LATE_SHARE = 1 / 6
"""An agent renews when a third of the certificate's time is left."""
_SWITCHED_OFF = "switched off by the site"

MISSING = Topic("agents.missing", "every node has an agent")
FOREIGN = Topic("agents.foreign", "every agent is on a node of Slurm")
LINKED = Topic("agents.linked", "every agent is linked")
VERSIONS = Topic("agents.versions", "versions of agents fit the server's")
CERTIFICATES = Topic("agents.certificates", "certificates of agents are renewed")
REFUSED = Topic("agents.refused", "no node is revoked or in quarantine")
DOUBLED = Topic("agents.doubled", "each certificate is used by one machine")
HELPER = Topic("agents.helper", "every agent has its helper")
DISK = Topic("agents.disk", "disks of agents have room")
SPOOL = Topic("agents.spool", "output reaches the object store")
EBPF = Topic("agents.ebpf", "latencies are counted (eBPF)")
CLOCK = Topic("agents.clock", "clocks of nodes agree")
ECHO = Topic("agents.echo", "agents accept the servers' grants")
TOPICS = (
    MISSING, FOREIGN, LINKED, VERSIONS, CERTIFICATES, REFUSED, DOUBLED, HELPER, DISK, SPOOL, EBPF,
    CLOCK, ECHO,
)  # fmt: skip

_NOT_SERVED = "no agents are served (section identity is not set): nothing is seen of nodes"


def agent_checks(
    found: Inspected[AgentsFacts], echo: Inspected[tuple[int, float, str]], now: datetime
) -> Iterator[Check]:
    """`echo` is how many agents answered, the slowest time, and why others did not."""
    facts = found.value
    if facts is None:
        for topic in TOPICS:
            yield topic.off(_NOT_SERVED) if found.off else topic.unknown(found.reason)
        return
    if not facts.presences.source.ok and facts.presences.source.as_of is None:
        for topic in TOPICS:
            yield topic.unknown("the agreed state has not been read yet")
        return
    yield missing(facts)
    yield foreign(facts)
    yield linked(facts)
    yield versions(facts)
    yield certificates(facts, now)
    yield refused(facts)
    yield doubled(facts)
    yield helper(facts)
    yield disk(facts)
    yield spool(facts)
    yield ebpf(facts)
    yield clock(facts)
    yield echoed(facts, echo)


def folded(names: Iterable[str]) -> str:
    """The names in Slurm's notation: `n[1-4]`."""
    listed = sorted(names)
    try:
        return NodeSet(listed).fold()
    except ValueError:
        return ",".join(listed)


def _linked(facts: AgentsFacts) -> list[Presence]:
    return [each for each in facts.presences.records.values() if each.linked]


def _nobody(facts: AgentsFacts, topic: Topic) -> Check | None:
    """The check while no agent is linked, or None if one is."""
    if _linked(facts):
        return None
    if facts.presences.records:
        return topic.unknown("no agent is linked now")
    return topic.off("no agent has ever been linked")


def missing(facts: AgentsFacts) -> Check:
    if facts.nodes is None:
        return MISSING.unknown("Slurm has not answered, so its nodes are not known")
    without = [each.name for each in facts.nodes if each.name not in facts.presences.records]
    if without:
        return MISSING.warning(
            f"{len(without)} of {len(facts.nodes)} nodes never had one: {folded(without)}",
            f"Make a join key with lattice admin enrol '{folded(without)}', and start "
            "lattice-agent there.",
        )
    return MISSING.ok(f"{len(facts.nodes)} nodes")


def foreign(facts: AgentsFacts) -> Check:
    if facts.nodes is None:
        return FOREIGN.unknown("Slurm has not answered, so its nodes are not known")
    known = {each.name for each in facts.nodes}
    odd = [each.node for each in _linked(facts) if each.node not in known]
    if odd:
        return FOREIGN.warning(
            f"Slurm has no such node: {folded(odd)}",
            "Stop lattice-agent there, or enrol it under the NodeName of Slurm.",
        )
    return FOREIGN.ok(f"{len(_linked(facts))} linked agents")


def linked(facts: AgentsFacts) -> Check:
    known = None if facts.nodes is None else {each.name for each in facts.nodes}
    # A node that was taken out of Slurm may have left its record.
    records = [
        each
        for each in facts.presences.records.values()
        if each.linked or known is None or each.node in known
    ]
    lost = [each for each in records if not each.linked]
    if not records:
        return LINKED.off("no agent has ever been linked")
    if not lost:
        return LINKED.ok(f"{len(records)} agents")
    down = [each.node for each in lost if each.condition is Condition.DOWN]
    others = [each.node for each in lost if each.condition is not Condition.DOWN]
    parts = [f"down: {folded(down)}"] if down else []
    parts += [f"lost a moment ago: {folded(others)}"] if others else []
    evidence = f"{len(lost)} of {len(records)} are not; {'; '.join(parts)}"
    remedy = "On the node: systemctl status lattice-agent, and check the network to the servers."
    return (LINKED.failed if down else LINKED.warning)(evidence, remedy)


def versions(facts: AgentsFacts) -> Check:
    if (nobody := _nobody(facts, VERSIONS)) is not None:
        return nobody
    found = _by(facts, lambda each: each.agent_version or "not reported", but=set())
    evidence = f"server {facts.version}; {_listed(found)}"
    fits = {version: fit_of(version, facts.version) for version in found}
    if Fit.TOO_NEW in fits.values():
        return VERSIONS.warning(
            f"server {facts.version}; newer by more than {MOST_AHEAD} release: "
            f"{_with(fits, found, Fit.TOO_NEW)}",
            "Upgrade the servers first, one by one (docs/operate/upgrade.md).",
        )
    if Fit.TOO_OLD in fits.values():
        return VERSIONS.warning(
            f"server {facts.version}; older by more than {MOST_BEHIND} releases: "
            f"{_with(fits, found, Fit.TOO_OLD)}",
            "Install the server's version on these nodes (docs/operate/upgrade.md).",
        )
    if Fit.UNKNOWN in fits.values():
        return VERSIONS.unknown(evidence)
    return VERSIONS.ok(facts.version if set(found) == {facts.version} else evidence)


def _with(fits: dict[str, Fit], found: dict[str, list[str]], fit: Fit) -> str:
    """The nodes of the versions that fit in this manner."""
    return _listed({version: found[version] for version, its in fits.items() if its is fit})


def certificates(facts: AgentsFacts, now: datetime) -> Check:
    there = {each.node for each in _linked(facts)}
    expired, late = [], []
    for each in facts.trust:
        if each.expires is None or each.revoked or each.quarantine or each.node not in there:
            continue
        left_s = (each.expires - now).total_seconds()
        if left_s <= 0:
            expired.append(each.node)
        elif left_s < _LATE_SHARE * _lasts_s(each):
            late.append(each.node)
    remedy = (
        "Check the agent's log for `renew` and the disk of its state folder; then enrol it anew."
    )
    if expired:
        return CERTIFICATES.failed(f"expired: {folded(expired)}", remedy)
    if late:
        return CERTIFICATES.warning(f"renewal is overdue: {folded(late)}", remedy)
    soonest = min(
        (each.expires for each in facts.trust if each.expires and each.node in there), default=None
    )
    if soonest is None:
        return CERTIFICATES.off("no linked agent has a certificate of this cluster's authority")
    return CERTIFICATES.ok(f"the next to be renewed lasts {age((soonest - now).total_seconds())}")


def _lasts_s(trust: AgentTrust) -> float:
    if trust.issued is None or trust.expires is None:
        return 0.0
    return (trust.expires - trust.issued).total_seconds()


def refused(facts: AgentsFacts) -> Check:
    held = [each.node for each in facts.trust if each.quarantine]
    revoked = [each.node for each in facts.trust if each.revoked and not each.quarantine]
    if held:
        why = next(each.quarantine for each in facts.trust if each.quarantine)
        return REFUSED.failed(
            f"in quarantine: {folded(held)} ({why})",
            f"Find out who has the certificate; then lattice admin reinstate {held[0]}.",
        )
    if revoked:
        # The certificates that SPIRE makes have no record here, and none of them ends a revocation.
        own = [each.node for each in facts.trust if each.expires is not None]
        enrolled = [each for each in revoked if each in own]
        others = [each for each in revoked if each not in own]
        steps = [f"lattice admin enrol {enrolled[0]}"] if enrolled else []
        if others:
            steps.append(
                f"lattice admin reinstate {others[0]}, which has no certificate of the cluster's "
                "own (SPIRE)"
            )
        return REFUSED.warning(
            f"revoked: {folded(revoked)}", f"If the node is sound again: {'; '.join(steps)}."
        )
    return REFUSED.ok(f"{len(facts.trust)} certificates")


def doubled(facts: AgentsFacts) -> Check:
    nodes = [
        each.node for each in facts.presences.records.values() if is_doubled(each, facts.presences)
    ]
    if nodes:
        return DOUBLED.failed(
            f"two machines use the certificate of {folded(nodes)} by turns",
            f"Remove the state folder of the machine that is not {nodes[0]} and enrol it under its "
            f"own name; then lattice admin revoke {nodes[0]}, and enrol {nodes[0]} anew.",
        )
    return DOUBLED.ok("no boot id has come back within a quarter of an hour")


def helper(facts: AgentsFacts) -> Check:
    if (nobody := _nobody(facts, HELPER)) is not None:
        return nobody
    away = _by(facts, lambda each: each.health.agent.helper, but={"ok", ""})
    if away:
        nodes = folded(node for nodes in away.values() for node in nodes)
        return HELPER.failed(
            f"no terminals and no private output files on {nodes}: {_listed(away)}",
            f"On {nodes}: systemctl restart lattice-helper.",
        )
    return _reported(HELPER, facts, lambda each: each.health.agent.helper or None)


def disk(facts: AgentsFacts) -> Check:
    if (nobody := _nobody(facts, DISK)) is not None:
        return nobody
    remedy = "Make room on the disk of lattice-agent's state_dir."
    full = _by(facts, _disk_fault, but={""})
    if full:
        return DISK.failed(_listed(full), remedy)
    low = [
        each.node
        for each in _linked(facts)
        if (free := each.health.agent.free_bytes) is not None and free < _LEAST_FREE_BYTES
    ]
    if low:
        return DISK.warning(f"less than {size_text(_LEAST_FREE_BYTES)} free: {folded(low)}", remedy)
    return _reported(DISK, facts, lambda each: each.health.agent.free_bytes, _least_free)


def _disk_fault(record: Presence) -> str:
    lack = next((each for each in record.health.lacks if each.startswith("state folder")), "")
    return lack.partition(". ")[0]


def _least_free(values: list[int]) -> str:
    return f"at least {size_text(min(values))} free"


def spool(facts: AgentsFacts) -> Check:
    if (nobody := _nobody(facts, SPOOL)) is not None:
        return nobody
    full, filling = [], []
    for each in _linked(facts):
        own = each.health.agent
        if own.spool_bytes is None or not own.spool_most_bytes:
            continue
        share = own.spool_bytes / own.spool_most_bytes
        if share >= 1:
            full.append(each.node)
        elif share > _SPOOL_SHARE:
            filling.append(each.node)
    remedy = "Check the object store and the agent's log for `shipping`."
    if full:
        return SPOOL.failed(f"the spool is full, new output is not kept: {folded(full)}", remedy)
    if filling:
        return SPOOL.warning(f"the spool is more than half full: {folded(filling)}", remedy)
    return _reported(SPOOL, facts, lambda each: each.health.agent.spool_bytes, _largest)


def _largest(values: list[int]) -> str:
    return f"at most about {size_text(max(values))} wait on a node"


def ebpf(facts: AgentsFacts) -> Check:
    if (nobody := _nobody(facts, EBPF)) is not None:
        return nobody
    lacking = _by(facts, lambda each: each.health.agent.latency, but={"ok", ""})
    if set(lacking) == {_SWITCHED_OFF} and len(lacking[_SWITCHED_OFF]) == len(_linked(facts)):
        return EBPF.off("switched off by the site: no latencies of I/O, no retransmits of jobs")
    lacking.pop(_SWITCHED_OFF, None)
    if lacking:
        return EBPF.warning(
            f"no latencies of I/O: {_listed(lacking)}",
            "Do what the page on eBPF says for this reason (docs/operate/ebpf.md), or start "
            "lattice-helper with --no-latency.",
        )
    return _reported(EBPF, facts, lambda each: each.health.agent.latency or None)


def clock(facts: AgentsFacts) -> Check:
    if (nobody := _nobody(facts, CLOCK)) is not None:
        return nobody
    off = {
        each.node: ahead_s
        for each in _linked(facts)
        if (ahead_s := each.health.agent.clock_ahead_s) is not None and abs(ahead_s) > CLOCK_OFF_S
    }
    if off:
        worst = max(off, key=lambda node: abs(off[node]))
        side = "ahead of" if off[worst] > 0 else "behind"
        return CLOCK.warning(
            f"{folded(off)}: up to {abs(off[worst]):.1f} s {side} the servers ({worst})",
            f"On {folded(off)}: start the time service and run chronyc makestep.",
        )
    return _reported(CLOCK, facts, lambda each: each.health.agent.clock_ahead_s, _furthest)


def _furthest(values: list[float]) -> str:
    return f"at most {max(map(abs, values)):.1f} s off"


def echoed(facts: AgentsFacts, found: Inspected[tuple[int, float, str]]) -> Check:
    if (nobody := _nobody(facts, ECHO)) is not None:
        return nobody
    if found.value is None:
        return ECHO.unknown(found.reason)
    answered, slowest_s, trouble = found.value
    if trouble:
        return ECHO.failed(
            trouble,
            "Check that identity.grant_key is the same on every server, and the port of "
            "api.agent_listen from the nodes; lattice admin ping NODE measures one node.",
        )
    return ECHO.ok(f"{answered} of {answered} asked answered, at most {milliseconds(slowest_s)}")


def _by(
    facts: AgentsFacts, value: Callable[[Presence], str], *, but: set[str]
) -> dict[str, list[str]]:
    """The linked nodes by a value of theirs, except for values in `but`."""
    found: dict[str, list[str]] = {}
    for each in _linked(facts):
        if (text := value(each)) not in but:
            found.setdefault(text, []).append(each.node)
    return found


def _listed(found: dict[str, list[str]]) -> str:
    return "; ".join(f"{folded(nodes)}: {text}" for text, nodes in sorted(found.items()))


def _reported(
    topic: Topic,
    facts: AgentsFacts,
    value: Callable[[Presence], T | None],
    evidence: Callable[[list[T]], str] | None = None,
) -> Check:
    """`ok` if every linked agent reports the value, `unknown` if one does not."""
    records = _linked(facts)
    values = [found for each in records if (found := value(each)) is not None]
    silent = [each.node for each in records if value(each) is None]
    if silent:
        # An agent that is new, or lacks its helper, has not measured everything.
        return topic.unknown(
            f"not reported by {folded(silent)}: an older agent, or not measured yet"
        )
    counted = f"{len(values)} agents"
    return topic.ok(f"{counted}, {evidence(values)}" if evidence else counted)
