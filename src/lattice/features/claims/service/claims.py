"""Claims, releases and the list of claims, for callers."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace

from lattice.access.actor import Actor
from lattice.access.claims import may_release, may_see, tenant_of_claimer
from lattice.access.journal import ActJournal
from lattice.base.caller_address import caller_address
from lattice.base.clock import Clock
from lattice.base.errors import Conflict, NotFound, PermissionRefused, Unavailable, UsageError
from lattice.base.failpoints import failpoint
from lattice.base.text import cut, inert
from lattice.domain.accounts import AccountTree
from lattice.domain.audit import AuditAct, AuditEvent, AuditOutcome, AuditTrail
from lattice.domain.claim import MOST_HELD, MOST_NODES, ClaimStep, NodeClaim, is_claim_id
from lattice.domain.nodeset import NodeSet
from lattice.domain.reservation import ReservationRefused
from lattice.domain.scheduler import Scheduler
from lattice.domain.sensitive import SensitiveWork
from lattice.features.claims.model import (
    LONGEST_REASON,
    ClaimAnswer,
    ClaimCard,
    ClaimList,
    ClaimOrder,
    ReleaseOrder,
)
from lattice.features.claims.service.ledger import ClaimLedger, ClaimReading, ClaimRecord
from lattice.features.claims.service.transitions import ClaimTransitions, claim_event

_TRIES = 10
_MOST_JOBS = 5
"""Jobs that a refusal names."""
_LIST_HINT = "`lattice admin claims` lists the claims that you may see."


class ClaimService:
    """For the role claim user. Every act is in the audit log before it happens."""

    def __init__(
        self,
        ledger: ClaimLedger,
        transitions: ClaimTransitions,
        trail: AuditTrail,
        scheduler: Scheduler,
        sensitive: SensitiveWork,
        clock: Clock,
        journal: ActJournal,
    ) -> None:
        self._ledger = ledger
        self._transitions = transitions
        self._trail = trail
        self._scheduler = scheduler
        self._sensitive = sensitive
        self._clock = clock
        self._journal = journal

    async def claims(self, actor: Actor) -> ClaimList:
        """The claims in force that the caller may see."""
        accounts = self._accounts()
        held = (await self._ledger.read()).claims.held
        seen = (ClaimCard.of(each) for each in held if may_see(actor, each, accounts))
        return ClaimList(claims=tuple(sorted(seen, key=lambda each: (each.nodes, each.id))))

    async def claim(self, actor: Actor, order: ClaimOrder) -> ClaimAnswer:
        """Claim all nodes or none. A claim of exactly these nodes is returned as it is.

        Raises `Conflict`, which names who holds what, and `PermissionRefused` if Slurm refuses.
        """
        if not actor.user:
            raise PermissionRefused(
                "Your token names no Unix user to claim for.", hint="See `lattice whoami`."
            )
        claim = self._new(actor, self._named(order.nodes), order.reason)
        held = await self._record(actor, claim)
        if held.claim.id != claim.id:
            return ClaimAnswer(claim=ClaimCard.of(held.claim), changed=False)
        failpoint("claims.recorded")
        try:
            made = await self._transitions.reserve(held, is_first=True)
        except ReservationRefused as refusal:
            self._journal.acted("claim failed", claim.folded, actor.sub, str(refusal))
            raise PermissionRefused(
                f"Nothing was claimed: Slurm does not reserve {claim.folded}: "
                f"{inert(str(refusal)).rstrip('.')}.",
                hint="`squeue -w NODES` shows what runs there.",
            ) from None
        except Unavailable as problem:
            raise _unfinished("claim", claim, problem) from problem
        failpoint("claims.claimed")
        self._journal.acted("claim", claim.folded, actor.sub, claim.reason)
        return ClaimAnswer(claim=ClaimCard.of(made), changed=True)

    async def release(self, actor: Actor, order: ReleaseOrder) -> ClaimAnswer:
        """Release a whole claim. Refused while its owner's sensitive jobs run there."""
        held = self._meant(actor, order.target, await self._ledger.read())
        if held.claim.step is ClaimStep.CLAIMING:
            raise Conflict(
                f"The claim of {held.claim.folded} is still being made.",
                hint="Try again in a minute; `lattice admin claims` shows when it is made.",
            )
        if held.claim.step is ClaimStep.CLAIMED:
            held = await self._begin_release(actor, held)
        claim = held.claim
        try:
            await self._transitions.unreserve(held)
        except ReservationRefused as refusal:
            self._note(actor, claim, AuditAct.RELEASE, AuditOutcome.FAILED, str(refusal))
            self._journal.acted("release failed", claim.folded, actor.sub, str(refusal))
            raise Conflict(
                f"Nothing was released: Slurm still needs the reservation of {claim.folded}: "
                f"{inert(str(refusal)).rstrip('.')}.",
                hint="`squeue` shows which jobs use it.",
            ) from None
        except Unavailable as problem:
            raise _unfinished("release", claim, problem) from problem
        self._journal.acted("release", claim.folded, actor.sub, claim.id)
        return ClaimAnswer(claim=ClaimCard.of(claim), changed=True)

    async def _record(self, actor: Actor, claim: NodeClaim) -> ClaimRecord:
        """The record of the new claim, or of an equal one that the caller holds."""
        is_audited = False
        for _ in range(_TRIES):
            reading = await self._ledger.read()
            equal = _equal(claim, reading)
            if equal is not None:
                return equal
            if refusal := self._conflict(claim, reading):
                self._note(actor, claim, AuditAct.CLAIM, AuditOutcome.REFUSED, refusal.message)
                raise refusal
            if not is_audited:
                await self._trail.require(
                    _by(actor, claim, AuditAct.CLAIM, f"claim-{claim.id}", claim.reason)
                )
                is_audited = True
                failpoint("claims.audited")
            held = await self._ledger.add(claim, reading)
            if held is not None:
                return held
        crowd = "many others claim at the same time"
        self._note(actor, claim, AuditAct.CLAIM, AuditOutcome.REFUSED, crowd)
        raise Unavailable(f"Nothing was claimed: {crowd}.", hint="Try again.")

    def _conflict(self, claim: NodeClaim, reading: ClaimReading) -> Conflict | None:
        others = reading.claims.overlapping(claim.nodes)
        if others:
            who = "; ".join(_holder(each, claim.nodes) for each in others)
            return Conflict(
                f"Nothing was claimed: {cut(who, 400)}.",
                hint="Ask them, or claim other nodes: the first claim of a node counts.",
            )
        if len(reading.revisions) >= MOST_HELD:
            return Conflict(
                "Nothing was claimed: there are as many claims as there can be.", hint=_LIST_HINT
            )
        return None

    async def _begin_release(self, actor: Actor, held: ClaimRecord) -> ClaimRecord:
        claim = held.claim
        try:
            await self._check_idle(claim)
        except Conflict as refusal:
            self._note(actor, claim, AuditAct.RELEASE, AuditOutcome.REFUSED, refusal.message)
            raise
        event = f"release-{uuid.uuid4().hex}"
        await self._trail.require(_by(actor, claim, AuditAct.RELEASE, event, ""))
        failpoint("claims.release.audited")
        releasing = await self._ledger.change(held, claim.at(ClaimStep.RELEASING, self._now()))
        if releasing is None:
            raise Conflict(
                f"The claim of {claim.folded} changed at the same time.", hint=_LIST_HINT
            )
        failpoint("claims.releasing")
        return releasing

    async def _check_idle(self, claim: NodeClaim) -> None:
        """Raise `Conflict` while sensitive jobs of the owner run there."""
        reading = await self._scheduler.fresh()
        if not reading.source.ok:
            raise Unavailable(
                f"Whether jobs run on {claim.folded} can't be told now: slurmctld does not answer.",
                hint="Try again in a minute.",
            )
        nodes = NodeSet(claim.nodes)
        running = [
            each.id
            for each in reading.cluster.index.of_user(claim.user)
            if each.nodes
            and not each.state.finished
            and self._sensitive.covers(each)
            and NodeSet.parse(each.nodes) & nodes
        ]
        if running:
            more = f" and {len(running) - _MOST_JOBS} more" if len(running) > _MOST_JOBS else ""
            raise Conflict(
                f"Nothing was released: sensitive jobs of {claim.user} run on {claim.folded}: "
                f"job {', job '.join(running[:_MOST_JOBS])}{more}.",
                hint="Wait until they end, or cancel them: `lattice cancel ID`.",
            )

    def _meant(self, actor: Actor, target: str, reading: ClaimReading) -> ClaimRecord:
        """The claim that the target names, if the caller may release it."""
        claims = reading.claims
        if is_claim_id(target):
            claim = next((each for each in claims.held if each.id == target), None)
            if claim is None or not may_release(actor, claim):
                raise NotFound(f"No claim {target} of yours.", hint=_LIST_HINT)
            return ClaimRecord(claim, reading.revisions[claim.id])
        nodes = _parsed(target, MOST_NODES)
        found = claims.overlapping(nodes)
        if not found:
            raise NotFound(f"{cut(str(nodes), 80)}: no such node is claimed.", hint=_LIST_HINT)
        other = next((each for each in found if not may_release(actor, each)), None)
        if other is not None:
            raise PermissionRefused(
                f"Nothing was released: {_holder(other, tuple(nodes))}.",
                hint="Only the claimer and system admins can release it.",
            )
        if len(found) > 1 or set(nodes) != set(found[0].nodes):
            parts = ", ".join(f"{each.folded} is claim {each.id}" for each in found)
            raise UsageError(
                f"A claim is released whole: {cut(parts, 200)}.",
                hint=f"lattice admin release {found[0].id}",
            )
        return ClaimRecord(found[0], reading.revisions[found[0].id])

    def _named(self, text: str) -> NodeSet:
        """The nodes; all must exist and be of a vCluster for sensitive work."""
        reading = self._scheduler.live()
        nodes = _parsed(text, MOST_NODES)
        known = {each.name: each for each in reading.cluster.nodes}
        if missing := NodeSet(each for each in nodes if each not in known):
            if not reading.source.ok:
                raise Unavailable(
                    "Whether that node exists can't be told now: slurmctld does not answer.",
                    hint="Try again in a minute.",
                )
            raise NotFound(
                f"No node of that name: {cut(str(missing), 80)}.",
                hint="`lattice nodes` lists all of them.",
            )
        partitions = self._sensitive.partitions
        if not partitions:
            raise UsageError(
                "This site has no vCluster for sensitive work, so no node can be claimed.",
                hint="`lattice vclusters` lists what there is.",
            )
        other = NodeSet(each for each in nodes if not partitions & set(known[each].partitions))
        if other:
            raise UsageError(
                f"{cut(str(other), 80)} can't be claimed: only nodes of a vCluster for sensitive "
                "work can.",
                hint=f"lattice nodes --partition {min(partitions)}",
            )
        return nodes

    def _new(self, actor: Actor, nodes: NodeSet, reason: str) -> NodeClaim:
        reason = inert(" ".join(reason.split()))
        if len(reason) > LONGEST_REASON:
            raise UsageError(f"A reason has at most {LONGEST_REASON} characters.")
        now = self._now()
        return NodeClaim(
            id=uuid.uuid4().hex[:12],
            user=actor.user,
            sub=actor.sub,
            tenant=tenant_of_claimer(actor, self._accounts()),
            nodes=tuple(sorted(nodes)),
            reason=reason,
            stepped=now,
            since=now,
        )

    def _note(
        self, actor: Actor, claim: NodeClaim, act: AuditAct, outcome: AuditOutcome, why: str
    ) -> None:
        """Record an act that did not happen, without waiting."""
        event = _by(actor, claim, act, uuid.uuid4().hex, why)
        self._trail.note(replace(event, outcome=outcome))

    def _accounts(self) -> AccountTree:
        return self._scheduler.live().cluster.accounts

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _by(actor: Actor, claim: NodeClaim, act: AuditAct, event: str, detail: str) -> AuditEvent:
    """An event of the caller, who need not be the holder."""
    return replace(
        claim_event(claim, act, event=event, detail=detail),
        sub=actor.sub,
        user=actor.user,
        role=actor.role.value,
        tenant=actor.tenant or (claim.tenant if actor.user == claim.user else ""),
        address=caller_address(),
    )


def _equal(claim: NodeClaim, reading: ClaimReading) -> ClaimRecord | None:
    for each in reading.claims.overlapping(claim.nodes):
        same = each.user == claim.user and each.nodes == claim.nodes
        if same and each.step is not ClaimStep.RELEASING:
            return ClaimRecord(each, reading.revisions[each.id])
    return None


def _holder(claim: NodeClaim, asked: Iterable[str]) -> str:
    theirs = NodeSet(each for each in asked if each in claim.nodes)
    return f"{inert(claim.user)} holds {theirs} (claim {claim.id})"


def _parsed(text: str, limit: int) -> NodeSet:
    try:
        nodes = NodeSet.parse(text, limit=limit)
    except ValueError as error:
        raise UsageError(
            f"{text[:80]!r} names no nodes: {error}.", hint="Write n1, n1,n2 or n[1-3]."
        ) from None
    if not nodes:
        raise UsageError("No node is named.", hint="Write n1, n1,n2 or n[1-3].")
    return nodes


def _unfinished(act: str, claim: NodeClaim, problem: Unavailable) -> Unavailable:
    return Unavailable(
        f"The {act} of {claim.folded} is recorded, and not finished yet: {problem.message}",
        hint="It is finished or undone within minutes; `lattice admin claims` shows it.",
    )
