"""Queries about nodes, and acts on them in the caller's name.

The node card lists only the caller's own allocations. Every act is logged.

A tenant admin may operate a node that serves only that tenant. A node serves a tenant if one of its
partitions admits an account of it, or if the tenant has work there. Anything unknown counts as
another tenant: an unknown account, a partition that admits every account, a node without
partitions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from lattice.access.actor import Actor
from lattice.access.claims import may_see
from lattice.access.journal import ActJournal
from lattice.access.permission import Permission
from lattice.access.policy import admits, governed_tenant, operates_own_nodes_only, scope_of
from lattice.base.errors import PermissionRefused, Unavailable, UsageError
from lattice.base.text import cut, inert
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation
from lattice.domain.claim import Claims, ClaimSet, NoClaims
from lattice.domain.node import HealthState, Node, NodeState
from lattice.domain.node_names import absent_node, known_nodes
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import Admitted, AllExcept, NodeAct, NodeOperator
from lattice.domain.presence import PresenceReading, Presences, with_agent
from lattice.domain.scheduler import LiveCluster, Scheduler, SchedulerReading
from lattice.domain.source import Source
from lattice.domain.vcluster import Vcluster, Vclusters
from lattice.features.nodes.model import (
    LONGEST_REASON,
    NodeActs,
    NodeCard,
    NodeList,
    NodeOutcome,
    NodeStateCount,
    VclusterCard,
    VclusterList,
    already,
    refusal,
)

_LONGEST_ACTOR = 64
_POLLS = 8
_POLL_S = 0.5
"""After a resume, a node counts as not responding until slurmctld has contacted it."""
_SEEN_WITHIN_S = 2.0


def other_tenant_on(
    node: Node, tenant: str, cluster: LiveCluster, admitted: Mapping[str, Admitted]
) -> str:
    """Return why the node is not this tenant's alone, or an empty string."""
    if not node.partitions:
        return f"{node.name} belongs to no partition"
    for name in sorted(node.partitions):
        accounts = admitted.get(name)
        if accounts is None:
            return f"the partition {name} of {node.name} admits every account"
        if isinstance(accounts, AllExcept):
            accounts = frozenset(cluster.accounts.accounts) - accounts.denied
        if any(cluster.accounts.tenant_of(each) != tenant for each in accounts):
            return f"the partition {name} of {node.name} admits accounts of other tenants"
    for work in cluster.on_node(node.name):
        others = cluster.accounts.tenant_of(work.account) != tenant
        if others and _is_there(work, node.name):
            return f"work of another tenant is on {node.name}"
    return ""


class NodeService:
    """Answers from the last snapshots of Slurm and of the agents, with their age."""

    def __init__(
        self,
        scheduler: Scheduler,
        presences: Presences,
        views: Callable[[], Vclusters] = Vclusters,
        claims: Claims | None = None,
        warnings: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`warnings` are those of active checks, by node."""
        self._scheduler = scheduler
        self._presences = presences
        self._views = views
        self._claims = claims or NoClaims()
        self._warnings = warnings

    async def nodes(self, actor: Actor, states: frozenset[NodeState], partition: str) -> NodeList:
        """Return all nodes, or those in some states or in a partition."""
        reading, agents = self._scheduler.live(), self._presences.presences()
        claims, accounts = _claims_of(self._claims), reading.cluster.accounts
        warnings = self._warnings()
        nodes = (
            each
            for each in (
                with_warning(_shown(node, agents, claims, actor, accounts), warnings)
                for node in reading.cluster.nodes
            )
            if (not states or each.state in states)
            and (not partition or partition in each.partitions)
        )
        return NodeList(
            nodes=tuple(sorted(nodes, key=lambda each: each.name)),
            sources=_sources(reading, agents),
        )

    async def vclusters(self) -> VclusterList:
        """Return all views, each with the nodes of its partition."""
        reading, agents = self._scheduler.live(), self._presences.presences()
        claims = _claims_of(self._claims)
        states: dict[str, Counter[NodeState]] = {}
        for node in reading.cluster.nodes:
            state = claims.state_of(with_agent(node, agents))
            for partition in node.partitions:
                states.setdefault(partition, Counter())[state] += 1
        return VclusterList(
            vclusters=tuple(
                _vcluster(each, states.get(each.partition, Counter()))
                for each in self._views().views
            ),
            sources=_sources(reading, agents),
        )

    async def node(self, actor: Actor, name: str) -> NodeCard:
        """Return one node. Raises `NotFound`, or `Unavailable` while slurmctld does not answer."""
        reading, agents = self._scheduler.live(), self._presences.presences()
        node = next((each for each in reading.cluster.nodes if each.name == name), None)
        if node is None:
            raise absent_node(reading)
        claims, accounts = _claims_of(self._claims), reading.cluster.accounts
        return NodeCard(
            node=with_warning(_shown(node, agents, claims, actor, accounts), self._warnings()),
            allocations=_visible_on(name, actor, reading),
            sources=_sources(reading, agents),
        )


def _claims_of(claims: Claims) -> ClaimSet:
    """The claims as last read. Nodes are listed even before the agreed state has answered."""
    try:
        return claims.claims()
    except Unavailable:
        return ClaimSet()


def _shown(
    node: Node, agents: PresenceReading, claims: ClaimSet, actor: Actor, accounts: AccountTree
) -> Node:
    """The node with what its agent reports and its claim, as far as the caller may know."""
    shown = with_claim(with_agent(node, agents), claims, actor, accounts)
    record = agents.records.get(node.name)
    if record is None or not admits(actor, Permission.OPERATE_NODES):
        return shown
    return replace(shown, slices=record.health.slices)


def with_warning(node: Node, warnings: Mapping[str, str]) -> Node:
    """The node with the warning of its newest check. It makes no failure of a warning."""
    warning, agent = warnings.get(node.name, ""), node.agent
    if not warning or agent is None:
        return node
    health = agent.health if agent.health is HealthState.FAILURE else HealthState.WARNING
    agent = replace(agent, health=health, health_words=(*agent.health_words, warning))
    return replace(node, agent=agent)


def with_claim(node: Node, claims: ClaimSet, actor: Actor, accounts: AccountTree) -> Node:
    """The node with its claim; the caller sees by whom, if the policy allows it."""
    claim = claims.of_node(node.name)
    if claim is None:
        return node
    user = claim.user if may_see(actor, claim, accounts) else ""
    return replace(node, state=claims.state_of(node), claimed_by=user)


def _vcluster(view: Vcluster, counts: Counter[NodeState]) -> VclusterCard:
    return VclusterCard(
        name=view.name,
        kind=view.kind,
        partition=view.partition,
        qos=view.qos,
        nodes=counts.total(),
        states=tuple(
            NodeStateCount(state=each, nodes=counts[each]) for each in NodeState if counts[each]
        ),
    )


def _sources(reading: SchedulerReading, agents: PresenceReading) -> tuple[Source, ...]:
    # Nodes are read less often than jobs, so they have their own age.
    cluster, source = reading.cluster, reading.source
    behind_s = (cluster.read_at - cluster.nodes_read_at).total_seconds()
    age_s = None if source.age_s is None else max(0.0, source.age_s + behind_s)
    slurm = replace(source, as_of=cluster.nodes_read_at, age_s=age_s)
    return slurm, agents.source


def _is_there(work: Allocation, node: str) -> bool:
    """Now: its earlier attempts may have been elsewhere."""
    return bool(work.nodes) and not work.state.finished and node in NodeSet.parse(work.nodes)


def _visible_on(name: str, actor: Actor, reading: SchedulerReading) -> tuple[str, ...]:
    scope = scope_of(actor, Permission.VIEW_ALLOCATIONS, reading.cluster.accounts)
    return tuple(
        each.id
        for each in reading.cluster.on_node(name)
        if scope.covers(each) and _is_there(each, name)
    )


class NodeOperations:
    """Takes nodes out of service and returns them: all named nodes or none."""

    def __init__(
        self,
        scheduler: Scheduler,
        operator: NodeOperator,
        journal: ActJournal,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._scheduler = scheduler
        self._operator = operator
        self._journal = journal
        self._sleep = sleep

    async def operate(self, actor: Actor, act: NodeAct, names: str, reason: str) -> NodeActs:
        """Perform the act on the nodes that need it. Repeating it changes nothing."""
        nodes = known_nodes(names, self._scheduler.live())
        if operates_own_nodes_only(actor):
            await self._check_tenant(actor, act, nodes)
        before = await self._operator.states(nodes)
        missing = NodeSet(each for each in nodes if each not in before)
        if missing:
            raise absent_node(self._scheduler.live(), missing)
        _check_states(act, before)
        open_ones = NodeSet(each for each in nodes if not already(act, before[each]))
        after = before
        if open_ones:
            await self._act(actor, act, open_ones, reason)
            after = await self._settled(nodes)
            # Refresh, so that the next `lattice nodes` shows it. The act is done even if this
            # fails.
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(_SEEN_WITHIN_S):
                    await self._scheduler.fresh(nodes=True)
        return NodeActs(
            nodes=tuple(
                NodeOutcome(
                    name=each,
                    before=before[each],
                    state=after.get(each, NodeState.UNKNOWN),
                    changed=each in open_ones,
                )
                for each in sorted(nodes)
            )
        )

    async def _check_tenant(self, actor: Actor, act: NodeAct, nodes: NodeSet) -> None:
        cluster = self._scheduler.live().cluster
        tenant = governed_tenant(actor, cluster.accounts)
        why = "" if tenant else "your token and Slurm's accounts name no tenant that you govern"
        if tenant:
            admitted = await self._operator.admitted()
            found = (each for each in cluster.nodes if each.name in nodes)
            reasons = (other_tenant_on(each, tenant, cluster, admitted) for each in found)
            why = next(filter(None, reasons), "")
        if why:
            self._journal.acted(f"{act.value} refused", str(nodes), actor.sub, why)
            raise PermissionRefused(
                f"A tenant admin can't {act.value} {cut(str(nodes), 80)}: {why}.",
                hint="Only nodes that serve your tenant alone; ask an operator for the others.",
            )

    async def _settled(self, nodes: NodeSet) -> Mapping[str, NodeState]:
        states = await self._operator.states(nodes)
        for _ in range(_POLLS):
            if NodeState.UNKNOWN not in states.values():
                break
            await self._sleep(_POLL_S)
            states = await self._operator.states(nodes)
        return states

    async def _act(self, actor: Actor, act: NodeAct, nodes: NodeSet, reason: str) -> None:
        if act in {NodeAct.DRAIN, NodeAct.DISABLE} and not reason.strip():
            raise UsageError(
                f"To {act.value} a node takes a reason.",
                hint=f"lattice admin {act.value} {nodes} --reason 'bad DIMM in slot 3'",
            )
        text = signed_reason(actor, reason)
        try:
            if act is NodeAct.DRAIN:
                await self._operator.drain(nodes, text, by=actor.sub)
            elif act is NodeAct.DISABLE:
                await self._operator.disable(nodes, text, by=actor.sub)
            else:
                await self._operator.resume(nodes, by=actor.sub)
        except Exception:
            self._journal.acted(f"{act.value} failed", str(nodes), actor.sub, text)
            raise
        self._journal.acted(act.value, str(nodes), actor.sub, text)


def _check_states(act: NodeAct, states: Mapping[str, NodeState]) -> None:
    for state in sorted(set(states.values())):
        why = refusal(act, state)
        if why is not None:
            names = NodeSet(name for name, each in states.items() if each is state)
            verb = "is" if len(names) == 1 else "are"
            raise UsageError(f"{names} {verb} {why[0]}.", hint=why[1].format(names=names))


def signed_reason(actor: Actor, reason: str) -> str:
    """Return the actor and the reason as one text. Slurm itself has only SlurmUser."""
    who = cut(inert(actor.user or actor.sub), _LONGEST_ACTOR)
    # `cut` counts screen columns, but Slurm's limit counts characters.
    return cut(f"{who}: {inert(' '.join(reason.split()))}", LONGEST_REASON)[:LONGEST_REASON]
