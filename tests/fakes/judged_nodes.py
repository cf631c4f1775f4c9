"""Nodes as their agents judge them: the port `Presences`, and a journal that keeps every act."""

from __future__ import annotations

from lattice.base.clock import Clock
from lattice.domain.node import Condition, HealthState, NodeHealth
from lattice.domain.presence import Presence, PresenceReading
from lattice.domain.source import Source


class JudgedNodes:
    """Every node is linked and sound, until it is said otherwise."""

    def __init__(self, clock: Clock, *names: str) -> None:
        self._clock = clock
        self.seen = True
        """False: the agreed state does not answer."""
        self._records: dict[str, Presence] = {}
        for name in names:
            self.judge(name, HealthState.HEALTHY)

    def judge(self, node: str, health: HealthState, *words: str, linked: bool = True) -> None:
        now = self._clock.now().timestamp()
        self._records[node] = Presence(
            node=node,
            epoch=1,
            linked=linked,
            since=now,
            condition=Condition.READY,
            registered=now,
            health=NodeHealth(health, words),
        )

    def fail(self, *nodes: str) -> None:
        for each in nodes:
            self.judge(
                each, HealthState.FAILURE, f"{BROKEN_CARD} reported XID 79: it fell off the bus"
            )

    def presences(self) -> PresenceReading:
        return PresenceReading(dict(self._records), {}, Source(name="agents", ok=self.seen))


BROKEN_CARD = "GPU-5e1f"


class KeptActs:
    """A journal: what was done, to what, by whom, and why."""

    def __init__(self) -> None:
        self.acts: list[tuple[str, str, str, str]] = []

    def acted(self, act: str, target: str, sub: str, detail: str, **_: str) -> None:
        self.acts.append((act, target, sub, detail))

    def named(self, act: str) -> list[str]:
        """The targets of one act."""
        return [target for each, target, _, _ in self.acts if each == act]
