"""The cost of a replica as a sum: of itself, of links, of samples and of viewers. Least squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Observed:
    """One replica in one phase."""

    phase: str
    replica: str
    parts: Mapping[str, float]
    """By name: how many of each; `itself` is 1."""
    cores: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Model:
    """What one of each costs."""

    costs: Mapping[str, float]

    def of(self, parts: Mapping[str, float]) -> float:
        return sum(cost * parts.get(name, 0.0) for name, cost in self.costs.items())


def fitted(parts: Sequence[Mapping[str, float]], values: Sequence[float]) -> Model:
    """The costs with the smallest squares of the residuals; none is negative.

    A part whose cost would be negative is left out: there is too little of it to be seen.
    """
    names = sorted({name for each in parts for name, count in each.items() if count})
    while names:
        rows = [[each.get(name, 0.0) for name in names] for each in parts]
        costs = _solved(rows, values)
        lowest = min(range(len(names)), key=lambda place: costs[place])
        if costs[lowest] >= 0:
            return Model(dict(zip(names, costs, strict=True)))
        del names[lowest]
    return Model({})


def _solved(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The normal equations, by Gauss; columns are scaled, as they differ by thousands."""
    width = len(rows[0])
    scale = [max(abs(row[place]) for row in rows) or 1.0 for place in range(width)]
    scaled = [[row[place] / scale[place] for place in range(width)] for row in rows]
    table = [
        [sum(row[one] * row[other] for row in scaled) for other in range(width)]
        + [sum(row[one] * value for row, value in zip(scaled, values, strict=True))]
        for one in range(width)
    ]
    for place in range(width):
        pivot = max(range(place, width), key=lambda row: abs(table[row][place]))
        table[place], table[pivot] = table[pivot], table[place]
        if abs(table[place][place]) < 1e-12:
            table[place][place] = 1e-12
        for row in range(width):
            if row != place:
                factor = table[row][place] / table[place][place]
                table[row] = [a - factor * b for a, b in zip(table[row], table[place], strict=True)]
    return [table[place][width] / table[place][place] / scale[place] for place in range(width)]
