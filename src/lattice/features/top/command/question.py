"""What a run of `lattice top` asks, again and again if need be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lattice.base.call import Call
from lattice.features.top import api
from lattice.features.top.model import TopAnswer, TopMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """For the plain output and the live screen alike; `with_mode` is another view of the same."""

    reference: str
    mode: TopMode = TopMode.SUMMARY
    duration_s: int | None = None
    attempt: int = 0
    interval_s: float = 5.0
    explain: bool = False

    def call(self, *, history: bool = False) -> Call[TopAnswer]:
        """One look; with `history` it brings the past of every cell along."""
        return api.query_metrics(
            self.reference,
            mode=self.mode,
            duration_s=self.duration_s,
            attempt=self.attempt,
            history=history,
            explain=self.explain,
        )

    def with_mode(self, mode: TopMode) -> Question:
        return replace(self, mode=mode)
