"""Makes rows of figures: a cell has its number, or the best known reason. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lattice.domain.measured import NOTHING_DONE, SHOWN, Making, Shown, Summing
from lattice.domain.metric import Absence, Provenance
from lattice.features.top.model import (
    RowKind,
    TopCell,
    TopColumn,
    TopMode,
    TopPoint,
    TopRow,
    columns_of,
)
from lattice.features.top.service.figures import ALL, Figures, Place

NOT_MEASURED = "it was not measured"
JUST_BEGUN = "the job has just begun"
ONE_SAMPLE = "a rate needs two samples, and the job has just begun"
TOO_SHORT = "a rate needs two samples, and the job was over before"
NONE_TIMED_YET = "no read or write of files was timed yet; the job has just begun"
NONE_TIMED = "no read or write of files was timed"
NO_GPUS = "the job has no GPUs"
NO_PAST = "the metric store does not answer, so there is no past"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The results of one look."""

    figures: Figures
    nodes: Sequence[str]
    at: float
    now: float
    """The time of the request: ages are relative to it, even for a finished job."""
    fresh_s: float
    running: bool = True
    young: bool = False
    """True if the attempt runs, or ran, for less time than a rate needs."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Nodes without a current sample, and why."""
    missing: Mapping[tuple[Shown, str], Absence] = field(default_factory=dict)
    """Metrics that a node reports as not measurable."""
    over_time: bool = False
    """True if the values cover a time range: then those of an unreachable node are valid."""
    has_gpus: bool | None = None
    summary: Figures | None = None
    """The summary, if it can't be computed from the rows."""

    @property
    def has_rates(self) -> bool:
        """True if there are two samples of any metric."""
        return any(SHOWN[metric].making is Making.RATE for metric, _ in self.figures.values)


def rows_of(mode: TopMode, known: Known) -> tuple[TopRow, ...]:
    """Return the summary, and the rows of the mode."""
    columns = columns_of(mode)
    below = () if mode is TopMode.SUMMARY else _below(mode, columns, known)
    return (_summary(mode, columns, known), *below)


def _below(mode: TopMode, columns: Sequence[TopColumn], known: Known) -> tuple[TopRow, ...]:
    if mode is not TopMode.PER_GPU:
        return tuple(_row(RowKind.NODE, (each, ""), columns, known) for each in known.nodes)
    cards: dict[str, list[str]] = {}
    for node, uuid in known.figures.places():
        if uuid:
            cards.setdefault(node, []).append(uuid)
    rows = []
    for node in known.nodes:
        if known.over_time or node not in known.silent:
            found = sorted(cards.get(node, ()))
            rows += [_row(RowKind.GPU, (node, each), columns, known) for each in found]
        if not rows or rows[-1].node != node:
            rows.append(_row(RowKind.NODE, (node, ""), columns, known))
    return tuple(rows)


def _row(kind: RowKind, place: Place, columns: Sequence[TopColumn], known: Known) -> TopRow:
    node = place[0]
    moment = known.figures.moments.get(node)
    silent = known.silent.get(node, "")
    gone = bool(silent) and not known.over_time
    return TopRow(
        kind=kind,
        node=node,
        gpu_uuid=place[1],
        age_s=max(0.0, known.now - moment) if moment is not None else None,
        reason=silent,
        cells=tuple(
            TopCell(metric=each.metric, reason=silent) if gone else _cell(each.metric, place, known)
            for each in columns
        ),
    )


def _cell(metric: Shown, place: Place, known: Known, of: int = 1) -> TopCell:
    figures, key = known.figures, (metric, place)
    value = figures.values.get(key)
    if value is None:
        told = _absence(metric, place, known)
        return TopCell(metric=metric, reason=told.reason, last_error=told.last_error)
    origin = figures.origin(metric, place[0])
    return TopCell(
        metric=metric,
        value=value,
        peak=figures.peaks.get(key) if figures.peaks else None,
        source=origin.source if origin else Provenance.HOST_LOCAL_PROBE,
        scope=origin.scope if origin and origin.scope == "node" else "",
        of=figures.of.get((metric, place[0]), of) if not place[1] else 1,
        history=_history(figures, metric, place),
    )


def _history(figures: Figures, metric: Shown, place: Place) -> tuple[TopPoint, ...]:
    points = figures.history.get((metric, place)) if figures.history else None
    return tuple(TopPoint(time=time, value=each) for time, each in points) if points else ()


def _absence(metric: Shown, place: Place, known: Known) -> Absence:
    series = SHOWN[metric].series
    computed = known.figures.none.get((metric, place))
    if computed:
        early = computed == NOTHING_DONE and known.young and known.running
        return Absence(series, NONE_TIMED_YET if early else computed)
    told = known.missing.get((metric, place[0]))
    if told is None and place == ALL:
        told = next((each for (of, _), each in known.missing.items() if of is metric), None)
    if told is not None:
        return told
    if SHOWN[metric].per_gpu and known.has_gpus is False:
        return Absence(series, NO_GPUS)
    if place == ALL and known.silent and len(known.silent) == len(known.nodes):
        return Absence(series, next(iter(known.silent.values())))
    return Absence(series, _unmeasured(SHOWN[metric].making, known))


def _unmeasured(making: Making, known: Known) -> str:
    """Return a default reason if there is no other."""
    if known.young and making is not Making.LAST:
        if making is Making.P99 and known.has_rates:
            # Some stores return nothing for a quantile without observations.
            return NONE_TIMED_YET if known.running else NONE_TIMED
        return ONE_SAMPLE if known.running else TOO_SHORT
    if known.young and known.running:
        return JUST_BEGUN
    return NONE_TIMED if making is Making.P99 else NOT_MEASURED


def _summary(mode: TopMode, columns: Sequence[TopColumn], known: Known) -> TopRow:
    moments = known.figures.moments
    newest = max(moments.values(), default=None)
    values = known.figures.by_metric()
    cells = tuple(
        _summary_cell(mode, each.metric, known, values.get(each.metric, {})) for each in columns
    )
    reason = ""
    if known.nodes and len(known.silent) == len(known.nodes):
        reason = next(iter(known.silent.values()))
    return TopRow(
        kind=RowKind.SUMMARY,
        age_s=max(0.0, known.now - newest) if newest is not None else None,
        reason=reason,
        cells=cells,
    )


def _summary_cell(
    mode: TopMode, metric: Shown, known: Known, values: Mapping[Place, float]
) -> TopCell:
    if known.summary is not None:
        return _cell(metric, ALL, replace(known, figures=known.summary, summary=None))
    if mode is TopMode.SUMMARY:
        origins = known.figures.origins.get((metric, ""), ())
        return _cell(metric, ALL, known, sum(each.series for each in origins))
    current = {
        place: value
        for place, value in values.items()
        if known.over_time or place[0] not in known.silent
    }
    weights = {
        place: 1 if place[1] else known.figures.of.get((metric, place[0]), 1) for place in current
    }
    value = _summed(metric, current, weights)
    if value is None:
        return _cell(metric, ALL, known)
    origin = known.figures.origin(metric, "")
    return TopCell(
        metric=metric,
        value=value,
        source=origin.source if origin else Provenance.HOST_LOCAL_PROBE,
        scope=origin.scope if origin and origin.scope == "node" else "",
        of=sum(weights.values()),
        history=_history(known.figures, metric, ALL),
    )


def _summed(
    metric: Shown, values: Mapping[Place, float], weights: Mapping[Place, int]
) -> float | None:
    """Combine values; a node's mean is weighted by its number of GPUs."""
    if not values:
        return None
    summing = SHOWN[metric].summing
    if summing is Summing.WORST:
        return max(values.values())
    if summing is Summing.TOTAL:
        return math.fsum(values.values())
    whole = math.fsum(value * weights[place] for place, value in values.items())
    return whole / sum(weights.values())
