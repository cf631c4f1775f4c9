"""What benches print: one JSON line a figure.

`value` is the median, `low` and `high` hold the middle half of the rounds, `bare` is what it is
held against and `ratio` is value to bare. Rounds are interleaved, so that a busy moment of the
machine falls on both.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of output."""

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    bare: float | None = None
    ratio: float | None = None
    goal: float | None = None
    ok: bool | None = None

    def print(self, **facts: Any) -> None:
        """With what else has to be known of the run."""
        say(asdict(self) | facts)


def say(told: dict[str, Any]) -> None:
    """One line, at once."""
    print(json.dumps(told), flush=True)


def load() -> float:
    """How busy the machine has been for a minute."""
    return round(os.getloadavg()[0], 2)


def against(
    name: str, unit: str, values: Sequence[float], bare: Sequence[float], goal: float | None
) -> Figure:
    """The ratio of the medians."""
    low, middle, high = statistics.quantiles(values, n=4)
    bare_middle = statistics.median(bare)
    ratio = middle / bare_middle
    return Figure(
        name=name,
        value=middle,
        unit=unit,
        low=low,
        high=high,
        bare=bare_middle,
        ratio=ratio,
        goal=goal,
        ok=None if goal is None else ratio <= goal,
    )


def paired(
    name: str,
    unit: str,
    ours: Sequence[float],
    bare: Sequence[float],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Figure:
    """The median of the rounds' own ratios, since both of a round meet the same machine."""
    ratio = statistics.median(one / other for one, other in zip(ours, bare, strict=True))
    low, middle, high = statistics.quantiles(ours, n=4)
    ok = None
    if at_most is not None:
        ok = ratio <= at_most
    elif at_least is not None:
        ok = ratio >= at_least
    return Figure(
        name=name,
        value=middle,
        unit=unit,
        low=low,
        high=high,
        bare=statistics.median(bare),
        ratio=ratio,
        goal=at_least if at_most is None else at_most,
        ok=ok,
    )
