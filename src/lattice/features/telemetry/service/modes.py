"""Modes of allocations in the state store. There are two kinds of keys.

    telemetry/modes/ALLOCATION   a switched mode, who set it, and its end.
    telemetry/debugging          which allocations are in debug and until when: the counter.

A switch commits both at once and compares the second, so the site's limit on debug is exact over
all servers. A mode ends by time even if its key still exists. The next switch removes expired keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lattice.base.clock import Clock
from lattice.base.errors import RateLimited, Unavailable
from lattice.domain.source import Source
from lattice.domain.state import Change, Delete, Entry, Expect, Put, StateStore, StateView
from lattice.domain.telemetry import Mode, ModeInForce

MODES = "telemetry/modes/"
DEBUGGING = "telemetry/debugging"
MOST_DEBUGGING = 500
"""Keeps that one key small."""
MOST_SWITCHED = 20_000
_MOST_TRIES = 8
_MOST_SWEPT = 50
_SWEEP_EVERY_S = 3600.0
_RETENTION_S = 3600.0

Unfinished = Callable[[], Container[str] | None]
"""Returns the `ref` of every unfinished allocation; None if that is not reliable now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedMode:
    """A mode that a user has set."""

    allocation: str
    """Its `ref`: an id alone may be used again."""
    mode: Mode
    until: float | None
    set_by: str
    since: float

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until


class AgreedModes:
    """Reads modes from a watched view, and switches them in the state store."""

    def __init__(
        self,
        state: StateStore,
        view: StateView,
        clock: Clock,
        unfinished: Unfinished,
        *,
        usual: Mode,
        debug_most: int,
    ) -> None:
        self._state = state
        self._view = view
        self._clock = clock
        self._unfinished = unfinished
        self.reload(usual, debug_most)
        self._entries: Mapping[str, Entry] | None = None
        self._switched: Mapping[str, SwitchedMode] = {}
        self._by_id: dict[str, SwitchedMode] = {}
        self._swept_s = float("-inf")

    @property
    def source(self) -> Source:
        return self._view.source

    @property
    def switched(self) -> Mapping[str, SwitchedMode]:
        """Modes by `ref` as last seen, including expired ones. A new mapping after each change."""
        try:
            entries = self._view.entries
        except Unavailable:
            return self._switched
        if entries is not self._entries:
            found = (switched_of(entry) for entry in entries.values())
            self._switched = {each.allocation: each for each in found if each}
            self._by_id = {}
            for each in sorted(self._switched.values(), key=lambda each: each.since):
                self._by_id[each.allocation.partition("@")[0]] = each
            self._entries = entries
        return self._switched

    def reload(self, usual: Mode, debug_most: int) -> None:
        """From now on this mode where nobody switched, and at most so many in debug."""
        self.usual, self.debug_most = usual, min(debug_most, MOST_DEBUGGING)

    def of(self, name: str) -> ModeInForce:
        """Implements the port `ModeOf`."""
        switched = self.switched.get(name) or self._by_id.get(name)
        return self.in_force(name, switched)

    def in_force(self, name: str, switched: SwitchedMode | None) -> ModeInForce:
        name = name.partition("@")[0]
        if switched is None or not switched.holds(self._now()):
            return ModeInForce(allocation=name, mode=self.usual, interval_s=self.usual.interval_s)
        return ModeInForce(
            allocation=name,
            mode=switched.mode,
            interval_s=switched.mode.interval_s,
            until=switched.until,
            set_by=switched.set_by,
        )

    @property
    def debugging(self) -> int:
        """Number of allocations in debug, as last seen."""
        now = self._now()
        return sum(each.mode is Mode.DEBUG and each.holds(now) for each in self.switched.values())

    async def switch(self, order: SwitchedMode) -> None:
        """Switch a mode. Raises `RateLimited` at the site's limit, and `Unavailable`."""
        if order.allocation not in self.switched and len(self.switched) >= MOST_SWITCHED:
            raise Unavailable(
                "As many allocations are switched here as can be.",
                hint="Try again later: those that are over make room.",
            )
        await self._sweep()
        for _ in range(_MOST_TRIES):
            entry = await self._state.get(DEBUGGING)
            changes = self._changes(order, _debugging_of(entry))
            fence = Expect(DEBUGGING, entry.revision if entry else 0)
            if await self._state.commit([fence], changes) is not None:
                return
        raise Unavailable("Too many switch their telemetry at once.", hint="Try again.")

    def _changes(self, order: SwitchedMode, before: Mapping[str, float]) -> list[Change]:
        now = self._now()
        after = {
            name: until
            for name, until in before.items()
            if until > now and name != order.allocation
        }
        usual = order.mode is self.usual
        if order.mode is Mode.DEBUG and not usual:
            if len(after) >= self.debug_most:
                after = self._still_needed(after)
            self._check_room(after, now)
            after[order.allocation] = order.until or 0.0
        key = MODES + order.allocation
        changes: list[Change] = [Delete(key) if usual else Put(key, _json(asdict(order)))]
        over = [name for name in before if name not in after and name != order.allocation]
        changes += [Delete(MODES + name) for name in over[:_MOST_SWEPT]]
        # Entries with keys that are not removed yet stay listed as expired.
        after |= {name: before[name] for name in over[_MOST_SWEPT:] if before[name] <= now}
        if after != before:
            changes.append(Put(DEBUGGING, _json(after)))
        return changes

    def _still_needed(self, debugging: dict[str, float]) -> dict[str, float]:
        unfinished = self._unfinished()
        if unfinished is None:
            return debugging
        return {name: until for name, until in debugging.items() if name in unfinished}

    def _check_room(self, others: Mapping[str, float], now: float) -> None:
        if len(others) < self.debug_most:
            return
        free_in_s = max(1, int(min(others.values(), default=now + 60) - now) + 1)
        raise RateLimited(
            f"{len(others)} allocations of this cluster are in debug, and no more than "
            f"{self.debug_most} may be (telemetry.debug_most).",
            hint="Try again when one of them has reverted, or ask the site for more."
            if self.debug_most
            else "This site measures nothing more closely than usual.",
            retry_after_s=free_in_s if self.debug_most else None,
        )

    async def _sweep(self) -> None:
        """Remove the modes of finished allocations."""
        now_s, now = self._clock.monotonic(), self._now()
        if now_s - self._swept_s < _SWEEP_EVERY_S:
            return
        unfinished = self._unfinished()
        if unfinished is None:
            return
        self._swept_s = now_s
        old = [
            each.allocation
            for each in self.switched.values()
            if each.mode is not Mode.DEBUG
            and each.allocation not in unfinished
            and each.since < now - _RETENTION_S
        ]
        entries = self._entries or {}
        for name in old[:_MOST_SWEPT]:
            key = MODES + name
            if key in entries:
                await self._state.commit([Expect(key, entries[key].revision)], [Delete(key)])

    def _now(self) -> float:
        return self._clock.now().timestamp()


def switched_of(entry: Entry) -> SwitchedMode | None:
    """Return the mode in a record, or None if it can't be parsed: then the default applies."""
    try:
        record: Any = json.loads(entry.value)
        until = record["until"]
        return SwitchedMode(
            allocation=str(record["allocation"]),
            mode=Mode(record["mode"]),
            until=None if until is None else float(until),
            set_by=str(record["set_by"]),
            since=float(record["since"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _debugging_of(entry: Entry | None) -> dict[str, float]:
    if entry is None:
        return {}
    try:
        record: Any = json.loads(entry.value)
        return {str(name): float(until) for name, until in record.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
