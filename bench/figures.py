"""What benches print: one JSON line a figure.

`value` is the median, `low` and `high` hold the middle half of the rounds. `bare` is what it is
compared with. `ratio` is value to bare, `ratio_low` and `ratio_high` are its interval. Rounds are
interleaved, so that a busy moment of the machine falls on both.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


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
    ratio_low: float | None = None
    ratio_high: float | None = None
    goal: float | None = None
    ok: bool | None = None

    def print(self, **facts: Any) -> None:
        """With what else has to be known of the run."""
        say(asdict(self) | facts)


class Spread(NamedTuple):
    """The median of the rounds, and the ends of their middle half."""

    low: float
    middle: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Of one round or more."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4))


def say(told: dict[str, Any]) -> None:
    """One line, at once."""
    print(json.dumps(told), flush=True)


def load() -> float:
    """How busy the machine has been for a minute."""
    return round(os.getloadavg()[0], 2)


def measured(
    name: str,
    unit: str,
    values: Sequence[float],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Figure:
    """A figure without a bare one; its goal has its own unit."""
    low, middle, high = spread(values)
    return Figure(
        name=name,
        value=middle,
        unit=unit,
        low=low,
        high=high,
        goal=at_least if at_most is None else at_most,
        ok=_is_met(middle, at_most, at_least),
    )


def against(
    name: str, unit: str, values: Sequence[float], bare: Sequence[float], goal: float | None
) -> Figure:
    """The ratio of the medians."""
    low, middle, high = spread(values)
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
        ratio_low=low / bare_middle,
        ratio_high=high / bare_middle,
        goal=goal,
        ok=_is_met(ratio, goal, None),
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
    ratio = spread([one / other for one, other in zip(ours, bare, strict=True)])
    low, middle, high = spread(ours)
    return Figure(
        name=name,
        value=middle,
        unit=unit,
        low=low,
        high=high,
        bare=statistics.median(bare),
        ratio=ratio.middle,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        goal=at_least if at_most is None else at_most,
        ok=_is_met(ratio.middle, at_most, at_least),
    )


def _is_met(value: float, at_most: float | None, at_least: float | None) -> bool | None:
    """None if there is no goal."""
    if at_most is not None:
        return value <= at_most
    return None if at_least is None else value >= at_least
