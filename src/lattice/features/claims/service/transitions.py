"""The steps between a claim's record and Slurm's reservation. A crash between two is made good.

The order decides what a crash leaves. A claim has its record first and its reservation second; a
release removes the reservation first and the record last. So no reservation is without a record,
except one whose record was removed by hand.
"""

from __future__ import annotations

from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.base.failpoints import failpoint
from lattice.domain.audit import AuditAct, AuditEvent, AuditOutcome, AuditTrail
from lattice.domain.claim import ClaimStep, NodeClaim
from lattice.domain.reservation import ReservationRefused, Reservations
from lattice.features.claims.service.ledger import ClaimLedger, ClaimRecord


class ClaimTransitions:
    """Brings a claim from its record's step to the next. Any server may do it, also twice."""

    def __init__(
        self, ledger: ClaimLedger, reservations: Reservations, trail: AuditTrail, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._reservations = reservations
        self._trail = trail
        self._clock = clock

    async def reserve(self, held: ClaimRecord, *, is_first: bool = False) -> NodeClaim:
        """Make the reservation of a new claim, then record that it is there.

        Raises `ReservationRefused` after the claim was undone. So it does with `ConfigurationError`
        if this is the first time: then there can't be a reservation yet.
        """
        claim = held.claim
        try:
            await self._reservations.reserve(claim.reservation)
        except ReservationRefused as refusal:
            await self._undo(held, str(refusal))
            raise
        except ConfigurationError as problem:
            if is_first:
                await self._undo(held, problem.message, is_reserved=False)
            raise
        failpoint("claims.reserved")
        claimed = await self._ledger.change(held, claim.at(ClaimStep.CLAIMED, self._now()))
        if claimed is not None:
            return claimed.claim
        return await self._other_step(claim)

    async def unreserve(self, held: ClaimRecord) -> None:
        """Remove the reservation of a claim that is being released, then its record.

        Raises `ReservationRefused` if Slurm does not remove it: then it is claimed as before.
        """
        claim = held.claim
        try:
            await self._reservations.release(claim.reservation.name)
        except ReservationRefused:
            if not claim.undone:
                await self._ledger.change(held, claim.at(ClaimStep.CLAIMED, self._now()))
            raise
        failpoint("claims.unreserved")
        await self._end(held)

    async def _end(self, held: ClaimRecord) -> None:
        if held.claim.undone:
            await self._trail.require(_failed(held.claim))
            failpoint("claims.undone")
        await self._ledger.end(held)

    async def _undo(self, held: ClaimRecord, why: str, *, is_reserved: bool = True) -> None:
        releasing = held.claim.at(ClaimStep.RELEASING, self._now(), undone=why or "refused")
        undone = await self._ledger.change(held, releasing)
        failpoint("claims.refused")
        if undone is None:
            return  # Another server changed it first, and goes on.
        await (self.unreserve(undone) if is_reserved else self._end(undone))

    async def _other_step(self, claim: NodeClaim) -> NodeClaim:
        """Another server changed the record while this one made the reservation."""
        held = await self._ledger.find(claim.id)
        if held is not None and held.claim.step is ClaimStep.CLAIMED:
            return held.claim
        await self._reservations.release(claim.reservation.name)
        raise Unavailable(
            f"The claim of {claim.folded} was undone by another server.",
            hint="`lattice admin claims` lists what you hold; then try again.",
        )

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _failed(claim: NodeClaim) -> AuditEvent:
    """The entry that a claim came to nothing, the same on every server."""
    return claim_event(
        claim, AuditAct.CLAIM, event=f"claim-undone-{claim.id}", outcome=AuditOutcome.FAILED
    )


def claim_event(
    claim: NodeClaim,
    act: AuditAct,
    *,
    event: str,
    outcome: AuditOutcome = AuditOutcome.DONE,
    detail: str = "",
) -> AuditEvent:
    """An event of the person who holds the claim."""
    return AuditEvent(
        event=event,
        act=act,
        outcome=outcome,
        sub=claim.sub,
        user=claim.user,
        owner=claim.user,
        tenant=claim.tenant,
        of_tenant=claim.tenant,
        node=claim.folded,
        target=claim.id,
        detail=detail or claim.undone,
    )
