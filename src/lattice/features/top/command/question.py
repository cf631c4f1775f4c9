"""The request of a run of `lattice top`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lattice.base.call import Call
from lattice.features.top import operations
from lattice.features.top.model import TopAnswer, TopMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Used by the plain output and by the live screen."""

    reference: str
    mode: TopMode = TopMode.SUMMARY
    duration_s: int | None = None
    attempt: int = 0
    interval_s: float = 5.0
    explain: bool = False

    def call(self, *, history: bool = False) -> Call[TopAnswer]:
        """Build one call; with `history` every cell has its past values."""
        return operations.query_metrics(
            self.reference,
            mode=self.mode,
            duration_s=self.duration_s,
            attempt=self.attempt,
            history=history,
            explain=self.explain,
        )

    def with_mode(self, mode: TopMode) -> Question:
        return replace(self, mode=mode)
