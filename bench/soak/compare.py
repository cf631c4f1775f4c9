"""The statistics of comparisons, by simulation: thousands of pairs of runs a cell.

just soak compare [PAIRS]

Runs of known truth: noise that keeps a share phi of its last deviation (AR(1)), for lengths of 20
minutes, an hour and a day at 30 s. What is held: without a difference the 95 % interval covers zero
in 92 to 98 of 100; a drop of 5 % is found as often as was said; a clear step is dated to two
samples; and where nothing parts, nothing is seen to.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from lattice.domain.statistics.divergence import parts_at
from lattice.domain.statistics.mean_difference import (
    Difference,
    difference,
    level_of,
    variance_of_mean,
)
from lattice.features.compare.service.metric_comparison import steady_from

PAIRS = 2000
_LONG = 2880
_CELLS = [(phi, count) for phi in (0.0, 0.5, 0.9) for count in (40, 120, _LONG)]
_LEVEL = 90.0
_STEP = 5.0
"""Of a clear step, in standard deviations of the difference."""


def noise(count: int, phi: float, draw: random.Random) -> list[float]:
    """AR(1) with variance 1, from its stationary distribution."""
    kept, value, found = math.sqrt(1 - phi * phi), draw.gauss(0, 1), []
    for _ in range(count):
        found.append(value)
        value = phi * value + kept * draw.gauss(0, 1)
    return found


def compared(first: list[float], second: list[float]) -> Difference:
    """As the service does it: each from where its steady state begins."""
    levels = [level_of(each[steady_from(each).begins :]) for each in (first, second)]
    assert levels[0] is not None
    assert levels[1] is not None
    return difference(levels[0], levels[1])


def covers(phi: float, count: int, draw: random.Random) -> tuple[float, float]:
    """Whether zero is inside where it is the truth."""
    runs = [[_LEVEL + each for each in noise(count, phi, draw)] for _ in range(2)]
    found = compared(*runs).absolute
    return float(found.low <= 0 <= found.high), 0.0


def finds_drop(phi: float, count: int, draw: random.Random) -> tuple[float, float]:
    """Whether a drop of 5 % is found, and how likely it was said to be.

    The noise is as large as lets an ideal test find it four times of five.
    """
    drop = 0.05 * _LEVEL
    size = drop / (2.8 * math.sqrt(2 * variance_of_mean(phi, count)))
    first = [_LEVEL + size * each for each in noise(count, phi, draw)]
    second = [_LEVEL - drop + size * each for each in noise(count, phi, draw)]
    found = compared(first, second)
    return float(found.absolute.high < 0), found.power(drop)


def dates_step(phi: float, count: int, draw: random.Random) -> tuple[float, float]:
    """Whether a clear step is dated to two samples."""
    at = draw.randrange(count // 4, 3 * count // 4)
    step = _STEP * math.sqrt(2)
    first = noise(count, phi, draw)
    second = [each - step * (here >= at) for here, each in enumerate(noise(count, phi, draw))]
    found = parts_at(first, second)
    return float(found is not None and abs(found - at) <= 2), 0.0


def false_parting(phi: float, count: int, draw: random.Random) -> tuple[float, float]:
    """Whether runs are said to part that do not."""
    found = parts_at(noise(count, phi, draw), noise(count, phi, draw))
    return float(found is not None), 0.0


_Trial = Callable[[float, int, random.Random], tuple[float, float]]


def shares(trial: _Trial, phi: float, count: int, pairs: int) -> tuple[float, float]:
    """The means of both figures over so many pairs, the same each time."""
    draw = random.Random(f"{trial.__name__} {phi} {count}")
    told = [trial(phi, count, draw) for _ in range(pairs)]
    return sum(each[0] for each in told) / pairs, sum(each[1] for each in told) / pairs


def cell(phi: float, count: int, pairs: int) -> list[dict[str, object]]:
    """All figures of one cell; of long runs a quarter as many, but for what is bounded closely."""
    fewer = pairs if count < _LONG else max(pairs // 4, 1)
    where = f"phi {phi:g}, n {count}"
    covered, _ = shares(covers, phi, count, pairs)
    found, said = shares(finds_drop, phi, count, fewer)
    dated, _ = shares(dates_step, phi, count, fewer)
    false, _ = shares(false_parting, phi, count, fewer)
    return [
        _line(f"95 % intervals that cover no difference, {where}", covered, "0.92..0.98",
              0.92 <= covered <= 0.98, pairs),
        _line(f"drops of 5 % that were found, {where}", found, f"{said:.3f} said",
              abs(found - said) <= 0.1, fewer),
        _line(f"clear steps dated to two samples, {where}", dated, ">=0.9", dated >= 0.9, fewer),
        _line(f"runs falsely said to part, {where}", false, "<=0.06", false <= 0.06, fewer),
    ]  # fmt: skip


def _line(name: str, value: float, goal: str, ok: bool, pairs: int) -> dict[str, object]:
    return {
        "name": name,
        "value": round(value, 4),
        "unit": "share",
        "bare": None,
        "ratio": None,
        "goal": goal,
        "ok": ok,
        "pairs": pairs,
    }


def lines(pairs: int) -> Iterator[dict[str, object]]:
    with ProcessPoolExecutor() as workers:
        for told in workers.map(partial(_cell, pairs), _CELLS):
            yield from told


def _cell(pairs: int, which: tuple[float, int]) -> list[dict[str, object]]:
    return cell(*which, pairs)


def main(pairs: int) -> int:
    held = True
    for each in lines(pairs):
        held = held and bool(each["ok"])
        print(json.dumps(each), flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS))
