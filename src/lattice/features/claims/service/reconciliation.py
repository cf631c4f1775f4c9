"""The loop that brings claims and reservations together again after a crash, or a change by hand.

A round has three readings: the records, the reservations, and the records once more. What began or
ended in between differs in the two readings of records, and is left alone.

    record claiming or releasing, and old     the step is finished
    record claimed, reservation missing       it is made again
    record claimed, reservation different     it is removed and made again
    reservation without a record              it is removed

One server does a round at a time: it takes a turn first, by a commit. Were two to work at the same
time, the commits would still keep each claim whole.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, LatticeError
from lattice.domain.claim import ClaimSet, ClaimStep, NodeClaim, claim_of
from lattice.domain.reservation import Reservation, ReservationRefused, Reservations
from lattice.domain.state import Expect, Put, StateStore
from lattice.features.claims.service.ledger import ClaimLedger, ClaimRecord
from lattice.features.claims.service.transitions import ClaimTransitions

_log = logging.getLogger("lattice.claims")

TURN = "claims-turn"
EVERY_S = 15.0
SWEEP_EVERY_S = 3600.0
"""Between looks for past claims that are too many."""
SETTLED_S = 45.0
"""Longer than a server takes for one step."""


@dataclass(slots=True)
class ReconciliationCounts:
    """What this server did since it started, and what it could not do in its last round."""

    finished_total: int = 0
    remade_total: int = 0
    removed_total: int = 0
    unreserved: int = 0
    """Claims without their reservation."""


class ClaimReconciler:
    """A background loop; the composition root starts `run`."""

    def __init__(
        self,
        ledger: ClaimLedger,
        transitions: ClaimTransitions,
        reservations: Reservations,
        state: StateStore,
        clock: Clock,
        is_needed: Callable[[], bool],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`is_needed`: False at a site without sensitive work, while nothing is claimed."""
        self._ledger = ledger
        self._transitions = transitions
        self._reservations = reservations
        self._state = state
        self._clock = clock
        self._is_needed = is_needed
        self._sleep = sleep
        self._swept_s = float("-inf")
        self.counts = ReconciliationCounts()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._sleep(EVERY_S * (0.75 + 0.5 * random.random()))  # noqa: S311
            try:
                if self._is_needed() and await self._take_turn():
                    await self.round()
            except LatticeError as error:
                _log.warning("claims are not reconciled now", extra={"why": error.message})

    async def _take_turn(self) -> bool:
        now = self._clock.now().timestamp()
        entry = await self._state.get(TURN)
        if entry is not None:
            try:
                age_s = now - float(entry.value)
            except ValueError:
                age_s = EVERY_S
            # The clock of the server that was last may be ahead.
            if 0 <= age_s < EVERY_S / 2:
                return False
        expected = [Expect(TURN, entry.revision if entry is not None else 0)]
        return await self._state.commit(expected, [Put(TURN, b"%.3f" % now)]) is not None

    async def round(self) -> None:
        """Compare everything once. Raises `Unavailable`."""
        before = await self._ledger.read()
        made = {each.name: each for each in await self._reservations.reservations()}
        after = await self._ledger.read()
        unreserved = 0
        for claim in after.claims.held:
            held = ClaimRecord(claim, after.revisions[claim.id])
            if claim.step is not ClaimStep.CLAIMED:
                await self._finish(held)
            elif before.revisions.get(claim.id) == held.revision:
                unreserved += not await self._restore(claim, made)
        await self._remove_strays(after.claims, made)
        now_s = self._clock.monotonic()
        if now_s - self._swept_s >= SWEEP_EVERY_S:
            await self._ledger.sweep()
            self._swept_s = now_s
        self.counts.unreserved = unreserved

    async def _finish(self, held: ClaimRecord) -> None:
        claim = held.claim
        if self._clock.now().timestamp() - claim.stepped < SETTLED_S:
            return
        try:
            if claim.step is ClaimStep.CLAIMING:
                await self._transitions.reserve(held)
            else:
                await self._transitions.unreserve(held)
        except (ReservationRefused, ConfigurationError) as refusal:
            extra = {"claim": claim.id, "nodes": claim.folded, "why": str(refusal)}
            _log.warning("a claim could not be finished", extra=extra)
            return
        self.counts.finished_total += 1
        extra = {"claim": claim.id, "nodes": claim.folded, "step": claim.step.value}
        _log.warning("a claim was finished that a server had left", extra=extra)

    async def _restore(self, claim: NodeClaim, made: Mapping[str, Reservation]) -> bool:
        """Make a missing reservation again; False if Slurm refuses."""
        wanted = claim.reservation
        found = made.get(wanted.name)
        if found is not None and is_same(found, wanted):
            return True
        extra = {"claim": claim.id, "nodes": claim.folded}
        try:
            if found is not None:
                await self._reservations.release(wanted.name)
            await self._reservations.reserve(wanted)
        except (ReservationRefused, ConfigurationError) as refusal:
            _log.error(
                "claimed nodes have no reservation, and Slurm makes none",
                extra={**extra, "why": str(refusal)},
            )
            return False
        # It may have been released meanwhile.
        held = await self._ledger.find(claim.id)
        if held is None or held.claim.step is not ClaimStep.CLAIMED:
            await self._reservations.release(wanted.name)
            return True
        self.counts.remade_total += 1
        _log.error("claimed nodes had no reservation; it was made again", extra=extra)
        return True

    async def _remove_strays(self, claims: ClaimSet, made: Mapping[str, Reservation]) -> None:
        known = {each.id for each in claims.held} | claims.unreadable
        for name in made:
            if claim_of(name) in known:
                continue
            try:
                await self._reservations.release(name)
            except (ReservationRefused, ConfigurationError) as refusal:
                extra = {"reservation": name, "why": str(refusal)}
                _log.warning("a reservation without a claim is still there", extra=extra)
                continue
            self.counts.removed_total += 1
            _log.warning("a reservation without a claim was removed", extra={"reservation": name})


def is_same(found: Reservation, wanted: Reservation) -> bool:
    """True if Slurm has it as it should be."""
    return found.user == wanted.user and set(found.nodes) == set(wanted.nodes)
