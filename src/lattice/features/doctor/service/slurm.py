"""The checks of Slurm: from facts to checks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lattice.domain.administration import GateRights, VerbGroup
from lattice.domain.scheduler import SchedulerReading
from lattice.domain.vcluster import VclusterKind, Vclusters
from lattice.features.doctor.model import Check, Topic
from lattice.features.doctor.service.facts import ControllerFacts, RightFacts, SchemaFacts
from lattice.features.doctor.service.measured import Inspected, milliseconds

OLDEST, NEWEST = (22, 5), (26, 5)
"""The releases of Slurm that Lattice is tested on."""
SLURM_SLOW_S = 1.0
_CLOCK_OFF_S = 2.0
_MOST_NAMED = 5
_RELEASE = re.compile(r"(\d+)\.(\d+)")

CONTROLLER = Topic("slurm.controller", "slurmctld answers")
LIST_AGE = Topic("slurm.list_age", "jobs and nodes are current")
ACCOUNTING = Topic("slurm.accounting", "slurmdbd answers")
SCHEMA = Topic("slurm.schema", "slurmrestd's schema is known")
RELEASE = Topic("slurm.release", "the release is supported")
CLUSTER = Topic("slurm.cluster", "the cluster's name is known")
PRIVATE_DATA = Topic("slurm.private_data", "nothing is hidden from the server")
OPERATE = Topic("slurm.operate", "the gate may drain nodes")
MANAGE = Topic("slurm.manage", "the gate may change tenants")
CLAIM = Topic("slurm.claim", "the gate may reserve nodes for claims")
ACCOUNTS = Topic("slurm.accounts", "the accounts are known")
PARTITIONS = Topic("slurm.partitions", "every vCluster has its partition")
CLOCK = Topic("slurm.clock", "slurmctld's clock agrees")

_REFUSED_WITHOUT = {
    VerbGroup.NODES: "`lattice admin drain`",
    VerbGroup.TENANTS: "`lattice admin tenant create`",
    VerbGroup.CLAIMS: "`lattice admin claim`",
}
_START_CONTROLLER = "On the controller's host: systemctl status slurmctld, then start it."
_START_ACCOUNTING = "On slurmdbd's host: systemctl status slurmdbd, then start it."
_REST = "Check slurmrestd (systemctl status slurmrestd), its token, and slurm.rest_url."


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFacts:
    controller: Inspected[ControllerFacts]
    ahead: Inspected[float | None]
    accounting: Inspected[str]
    schemas: Inspected[SchemaFacts]
    rights: Inspected[RightFacts]
    gate: Inspected[GateRights]
    partitions: Inspected[frozenset[str]]
    reading: Inspected[SchedulerReading]
    views: Vclusters


def slurm_checks(facts: SlurmFacts) -> Iterator[Check]:
    yield controller(facts.controller)
    yield list_age(facts.reading)
    yield accounting(facts.accounting)
    yield schema(facts.schemas)
    yield release(facts.controller, facts.reading)
    yield cluster(facts.controller)
    yield private_data(facts.rights)
    yield gate_right(OPERATE, facts.gate, VerbGroup.NODES)
    yield gate_right(MANAGE, facts.gate, VerbGroup.TENANTS)
    if any(view.kind is VclusterKind.SENSITIVE for view in facts.views.views):
        yield gate_right(CLAIM, facts.gate, VerbGroup.CLAIMS)
    yield accounts(facts.reading)
    yield partitions(facts.partitions, facts.views)
    yield clock(facts.ahead)


def controller(found: Inspected[ControllerFacts]) -> Check:
    if found.value is None:
        return CONTROLLER.failed(found.reason, _START_CONTROLLER)
    return _answered(CONTROLLER, found.took_s, "slurmctld is busy: sdiag shows with what.")


def _answered(topic: Topic, took_s: float, remedy: str) -> Check:
    evidence = f"answered in {milliseconds(took_s)}"
    return topic.warning(evidence, remedy) if took_s > SLURM_SLOW_S else topic.ok(evidence)


def list_age(found: Inspected[SchedulerReading]) -> Check:
    reading = found.value
    if reading is None:
        return LIST_AGE.failed(found.reason, _REST)
    source, live = reading.source, reading.cluster
    age = f", {source.age_s:.0f} s old" if source.age_s is not None else ""
    evidence = f"{len(live.allocations)} jobs and {len(live.nodes)} nodes{age}"
    if source.ok:
        return LIST_AGE.ok(evidence)
    return LIST_AGE.failed(f"{evidence}: {source.error or 'slurmctld does not answer'}", _REST)


def accounting(found: Inspected[str]) -> Check:
    if found.value is None:
        return ACCOUNTING.failed(found.reason, _START_ACCOUNTING)
    return _answered(
        ACCOUNTING, found.took_s, "slurmdbd or its database is busy: sacctmgr show stats."
    )


def schema(found: Inspected[SchemaFacts]) -> Check:
    facts = found.value
    if facts is None:
        return SCHEMA.failed(found.reason, found.hint or _REST)
    evidence = f"jobs in {facts.live}, accounting in {facts.past}"
    newer = [
        f"{offered} is read like {read_as}"
        for offered, read_as in ((facts.live, facts.live_read_as), (facts.past, facts.past_read_as))
        if offered != read_as
    ]
    if newer:
        text = "; ".join(dict.fromkeys(newer))
        return SCHEMA.warning(
            f"slurmrestd is newer than this Lattice: {text}",
            "Upgrade Lattice, or load an older openapi plugin in slurmrestd.",
        )
    return SCHEMA.ok(evidence)


def release(found: Inspected[ControllerFacts], reading: Inspected[SchedulerReading]) -> Check:
    if found.value is None:
        return RELEASE.unknown(f"slurmctld: {found.reason}")
    own = found.value.release
    nodes = reading.value.cluster.nodes if reading.value is not None else ()
    others = sorted({each.slurm_version for each in nodes if each.slurm_version} - {own})
    evidence = f"slurmctld {own}" + (f", nodes also {_few(others)}" if others else "")
    number = _number(own)
    if number is None:
        return RELEASE.unknown(f"slurmctld names no release: {own[:40]!r}")
    if number < OLDEST:
        return RELEASE.failed(
            evidence, f"Upgrade Slurm: Lattice needs {_written(OLDEST)} or newer."
        )
    if number > NEWEST:
        return RELEASE.warning(
            evidence,
            f"Upgrade Lattice: this version is tested up to Slurm {_written(NEWEST)}.",
        )
    return RELEASE.ok(evidence)


def _number(release: str) -> tuple[int, int] | None:
    match = _RELEASE.match(release)
    return (int(match[1]), int(match[2])) if match else None


def _written(number: tuple[int, int]) -> str:
    return f"{number[0]}.{number[1]:02d}"


def cluster(found: Inspected[ControllerFacts]) -> Check:
    if found.value is None:
        return CLUSTER.unknown(f"slurmctld: {found.reason}")
    if not found.value.cluster:
        return CLUSTER.failed("slurmctld names no cluster", "Set ClusterName in slurm.conf.")
    return CLUSTER.ok(found.value.cluster)


def private_data(found: Inspected[RightFacts]) -> Check:
    if found.value is None:
        return PRIVATE_DATA.unknown(found.reason)
    if found.value.hidden is None:
        return PRIVATE_DATA.ok("the server's account sees every job and account")
    evidence, _, remedy = found.value.hidden.partition(". ")
    return PRIVATE_DATA.failed(evidence, f"{remedy or evidence}.")


def gate_right(topic: Topic, found: Inspected[GateRights], group: VerbGroup) -> Check:
    """One group of verbs that the site may allow its gate."""
    refused = f"{_REFUSED_WITHOUT[group]} is refused"
    if found.off:
        return topic.off(f"no gate is configured (gate.socket): {refused}")
    facts = found.value
    if facts is None:
        return topic.unknown(found.reason)
    if group not in facts.groups:
        # A right that most sites need not give: Slurm's own commands do the same.
        allow = (
            f"add `--allow {group.value}` to OPTIONS in /etc/default/lattice-gate, and restart "
            "lattice-gate"
        )
        if group is VerbGroup.CLAIMS:
            return topic.failed(
                f"this site has sensitive work and does not allow it: {refused}",
                f"To allow it, {allow}.",
            )
        return topic.off(f"this site does not allow it: {refused}. To allow it, {allow}")
    if facts.fault:
        return topic.failed(
            facts.fault,
            "Give the gate's host the account of SlurmUser, and slurm.conf; or name another "
            "account by --administer-as (docs/operate/gate.md).",
        )
    return topic.ok(f"by the gate as {facts.user}; nothing was changed to try")


def accounts(found: Inspected[SchedulerReading]) -> Check:
    if found.value is None:
        return ACCOUNTS.unknown(found.reason)
    tree = found.value.cluster.accounts
    if not tree.accounts:
        return ACCOUNTS.failed(
            "no account was read, so nobody is a tenant admin or a coordinator",
            "Check slurmdbd, and that sacctmgr -n show account lists accounts to the server's "
            "account.",
        )
    return ACCOUNTS.ok(f"{len(tree.accounts)} accounts, {len(tree.members)} users")


def partitions(found: Inspected[frozenset[str]], views: Vclusters) -> Check:
    if not views.views:
        return PARTITIONS.off("no vCluster is configured: jobs are shown by partition")
    if found.value is None:
        return PARTITIONS.unknown(f"slurmctld: {found.reason}")
    lost = [each for each in views.views if each.partition not in found.value]
    if lost:
        named = _few(f"{each.name} (partition {each.partition})" for each in lost)
        return PARTITIONS.failed(
            f"Slurm has no such partition: {named}",
            "Correct `vclusters` in the server's configuration, or create the partition in Slurm.",
        )
    return PARTITIONS.ok(f"{len(views.views)} vClusters")


def clock(found: Inspected[float | None]) -> Check:
    if found.value is None:
        return CLOCK.unknown(found.reason or "slurmctld does not report its time")
    # slurmctld reports whole seconds, so its time lies up to a second after the number.
    ahead_s = found.value + 0.5
    evidence = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the server's"
    if abs(ahead_s) > _CLOCK_OFF_S + 0.5 + found.took_s:
        return CLOCK.warning(
            evidence, "Set both clocks by the same time servers: chronyc makestep on both hosts."
        )
    return CLOCK.ok(f"within {_CLOCK_OFF_S:g} s of the server's")


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - _MOST_NAMED
    return ", ".join(listed[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
