"""`--until`: a state of the job, or a figure that stays beyond a bound for a time.

    running | ended | METRIC < NUMBER [for TIME]      also <=, > and >=

Unknown syntax is refused with suggestions.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from lattice.base.errors import UsageError
from lattice.base.moment import parse_duration
from lattice.domain.allocation import State
from lattice.domain.measured import SHOWN, Shown
from lattice.features.watch.model import (
    WatchEnd,
    WatchMeasured,
    WatchNote,
    WatchNoteKind,
    WatchRecord,
    WatchState,
)

_HINT = 'Write running, ended, or a condition such as "gpu_utilization<10 for 5m".'
_CONDITION = re.compile(
    r"\s*(?P<metric>[a-z][a-z0-9_]*)\s*(?P<sign><=|>=|<|>)\s*(?P<number>[0-9]+(\.[0-9]+)?)"
    r"\s*(?P<unit>(?!for)[A-Za-zµ%°]*(/s)?)(\s+for\s+(?P<time>[0-9a-z]+))?\s*",
    re.ASCII,
)
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SHORT = {"gpu_util": Shown.GPU_UTILIZATION, "cpu_util": Shown.CPU_UTILIZATION}
_BYTES = {
    **{f"{letter}B": 1000.0**power for power, letter in enumerate(("", "k", "M", "G", "T"))},
    **{f"{letter}iB": 1024.0**power for power, letter in enumerate(("K", "M", "G", "T"), 1)},
    "KB": 1000.0,
}
_UNITS: dict[str, dict[str, float]] = {
    "%": {"%": 1.0},
    "W": {"W": 1.0, "kW": 1000.0},
    "°C": {"C": 1.0, "°C": 1.0},
    "µs": {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6},
    "bytes": _BYTES,
    "bytes/s": {f"{name}/s": factor for name, factor in _BYTES.items()},
}
_NOT_RUNNING = frozenset({State.CONFIGURING, State.UNKNOWN})
_LOOKS_MISSED = 3.0


class Until(Protocol):
    """A condition to wait for."""

    metric: Shown | None
    """The metric it needs, if any."""
    text: str

    def met(self, record: WatchRecord) -> bool:
        """Return True if this record fulfils the condition."""


@dataclass(slots=True)
class UntilState:
    """The job is `running`, or has `ended`."""

    text: str
    metric: Shown | None = None

    def met(self, record: WatchRecord) -> bool:
        if self.text == "ended":
            return isinstance(record, WatchEnd)
        if not isinstance(record, WatchState):
            return False
        return not record.state.waiting and record.state not in _NOT_RUNNING


class UntilFigure:
    """Uses the figure of the whole job, and the times of its measurements."""

    def __init__(self, metric: Shown, sign: str, bound: float, for_s: float, text: str) -> None:
        self.metric: Shown | None = metric
        self.text = text
        self._holds = _SIGNS[sign]
        self._bound = bound
        self._for_s = for_s
        self._since: datetime | None = None
        self._last: datetime | None = None

    def met(self, record: WatchRecord) -> bool:
        if isinstance(record, WatchNote) and record.kind is WatchNoteKind.DISCONNECTED:
            self._since = None
        if not isinstance(record, WatchMeasured):
            return False
        value = next((each.value for each in record.summary if each.metric is self.metric), None)
        longest_s = _LOOKS_MISSED * record.resolution_s
        if self._last is not None and (record.time - self._last).total_seconds() > longest_s:
            # There was no measurement in between, so the state is unknown.
            self._since = None
        self._last = record.time
        if value is None or not self._holds(value, self._bound):
            self._since = None
            return False
        self._since = self._since or record.time
        return (record.time - self._since).total_seconds() >= self._for_s


def parse_until(text: str) -> Until:
    """Parse a condition. Raises `UsageError`."""
    word = text.strip()
    if word in {"running", "ended"}:
        return UntilState(word)
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} says nothing to wait for.", hint=_HINT)
    metric = read_metric(found["metric"])
    bound = float(found["number"]) * _factor(metric, found["unit"] or "")
    for_s = parse_duration(found["time"]) if found["time"] else 0
    return UntilFigure(metric, found["sign"], bound, float(for_s), word)


def read_metric(name: str) -> Shown:
    """Parse the name of a metric. Raises `UsageError`."""
    if name in _SHORT:
        return _SHORT[name]
    try:
        return Shown(name)
    except ValueError:
        pass
    from difflib import get_close_matches  # noqa: PLC0415 - for whoever mistyped only

    near = get_close_matches(name, [each.value for each in Shown], 3, 0.5)
    known = ", ".join(near or [each.value for each in Shown])
    raise UsageError(
        f"{name!r} is no metric.", hint=f"Did you mean {known}?" if near else f"There are {known}."
    )


def _factor(metric: Shown, unit: str) -> float:
    known = _UNITS.get(SHOWN[metric].unit, {})
    if not unit or unit in known:
        return known.get(unit, 1.0)
    units = ", ".join(known) or "none"
    raise UsageError(
        f"{unit!r} is no unit of {metric.value}.", hint=f"Its units are: {units}; or write none."
    )
