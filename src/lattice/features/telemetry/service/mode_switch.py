"""Shows the mode of a job to its readers, and lets its owner switch it."""

from __future__ import annotations

from datetime import UTC, datetime

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder, Found
from lattice.access.journal import ActJournal
from lattice.access.permission import Permission
from lattice.access.sensitive_acts import SensitiveActs
from lattice.base.clock import Clock
from lattice.base.errors import JobEnded, Unavailable, UsageError
from lattice.base.moment import age
from lattice.domain.allocation import Allocation
from lattice.domain.audit import AuditAct
from lattice.domain.sharing import ReadNotes, ReadRecord, Standing
from lattice.domain.telemetry import DEBUG_S, LONGEST_DEBUG_S, Mode, ModeInForce
from lattice.features.telemetry.model import Telemetry, TelemetryOrder
from lattice.features.telemetry.service.modes import AgreedModes, SwitchedMode

_SHORTEST_S = 10
_LONGEST_S = 30 * 24 * 3600


class TelemetrySwitching:
    """Serves callers, one request at a time."""

    def __init__(
        self,
        finder: AllocationFinder,
        modes: AgreedModes,
        notes: ReadNotes | None,
        clock: Clock,
        journal: ActJournal,
        acts: SensitiveActs | None = None,
    ) -> None:
        self._acts = acts or SensitiveActs()
        self._finder = finder
        self._modes = modes
        self._notes = notes
        self._clock = clock
        self._journal = journal

    async def telemetry(self, actor: Actor, name: str) -> Telemetry:
        """Return the mode in force. Raises what the finder raises, and `Unavailable`."""
        found = await self._finder.find(actor, Permission.READ_MEASUREMENTS, name)
        allocation = _only(found, name)
        if not self._modes.source.ok:
            raise Unavailable(
                f"How closely {name} is measured can't be told now: the agreed state does not "
                "answer.",
                hint="Try again in a minute.",
            )
        return await self._answer(found, self._modes.of(allocation.ref))

    async def switch(self, actor: Actor, order: TelemetryOrder) -> Telemetry:
        """Switch the mode. Raises `JobEnded`, and `RateLimited` at the site's limit."""
        name, lasts_s = order.id, _lasts_s(order, self._modes.usual)
        found = await self._finder.find(actor, Permission.SWITCH_TELEMETRY, name)
        allocation = _only(found, name)
        if allocation.state.finished:
            raise JobEnded(
                f"Allocation {name} is over: nothing of it is measured any more.",
                hint=f"`lattice top {name}` shows what was.",
            )
        if allocation.first_submitted is None:
            raise Unavailable(
                f"When {allocation.id} was first submitted is not known yet, and its id alone "
                "might come to mean another.",
                hint="Try again in a minute: Slurm's accounting has it.",
            )
        now = self._clock.now().timestamp()
        switched = SwitchedMode(
            allocation=allocation.ref,
            mode=order.mode,
            until=None if lasts_s is None else now + lasts_s,
            set_by=actor.user or actor.sub,
            since=now,
        )
        lasts = f" for {age(lasts_s)}" if lasts_s else ""
        detail = f"{order.mode.value}{lasts}"
        audited = await self._acts.require(actor, AuditAct.MODE_SWITCH, allocation, detail)
        await self._modes.switch(switched)
        if not audited:
            self._journal.acted(
                "telemetry",
                allocation.ref,
                actor.sub,
                detail,
                owner=allocation.user,
                tenant=allocation.tenant,
            )
        usual = order.mode is self._modes.usual
        return await self._answer(
            found, self._modes.in_force(allocation.ref, None if usual else switched)
        )

    async def _answer(self, found: Found, mode: ModeInForce) -> Telemetry:
        until = mode.until
        return Telemetry(
            allocation=found.allocation.id,
            mode=mode.mode,
            interval_s=mode.interval_s,
            until=None if until is None else datetime.fromtimestamp(until, UTC),
            set_by=mode.set_by,
            debug_now=self._modes.debugging,
            debug_most=self._modes.debug_most,
            readers=await self._readers(found, mode),
        )

    async def _readers(self, found: Found, mode: ModeInForce) -> tuple[ReadRecord, ...]:
        """Return the readers, for the owner only."""
        if mode.mode is not Mode.AUDIT or found.standing is not Standing.OWNER:
            return ()
        return await self._notes.of((found.allocation,)) if self._notes else ()


def _lasts_s(order: TelemetryOrder, usual: Mode) -> int | None:
    """Return for how many seconds the mode holds; None without an end. Raises `UsageError`."""
    lasts_s = order.duration_s
    debug = order.mode is Mode.DEBUG and usual is not Mode.DEBUG
    if not lasts_s:
        return DEBUG_S if debug else None
    if order.mode is usual:
        raise UsageError(
            f"{order.mode.value} is the usual mode here and has no end.",
            hint="Leave the duration out.",
        )
    longest_s = LONGEST_DEBUG_S if debug else _LONGEST_S
    if not _SHORTEST_S <= lasts_s <= longest_s:
        raise UsageError(
            f"{order.mode.value} can't last {age(max(lasts_s, 0))}.",
            hint=f"From {_SHORTEST_S} s to {age(longest_s)}; switch again when it is over.",
        )
    return lasts_s


def _only(found: Found, name: str) -> Allocation:
    if found.siblings:
        some = ", ".join(each.id for each in (found.allocation, *found.siblings[:3]))
        raise UsageError(
            f"{name} has {len(found.siblings) + 1} parts, each measured for itself.",
            hint=f"Name one of them: {some}{', …' if len(found.siblings) > 3 else ''}.",
        )
    return found.allocation
