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
from lattice.features.top.service.figures import ALL, Figures, RowKey

NOT_MEASURED = "it was not measured"
JUST_BEGUN = "the job has just begun"
ONE_SAMPLE = "a rate needs two samples, and the job has just begun"
TOO_SHORT = "a rate needs two samples, and the job was over before"
NONE_TIMED_YET = "no read or write of files was timed yet; the job has just begun"
NONE_TIMED = "no read or write of files was timed"
NO_GPUS = "the job has no GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known for one answer."""

    figures: Figures
    nodes: Sequence[str]
    now: float
    """The time of the request: ages are relative to it, even for a finished job."""
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
    for node, uuid in known.figures.row_keys():
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


def _row(kind: RowKind, row_key: RowKey, columns: Sequence[TopColumn], known: Known) -> TopRow:
    node = row_key[0]
    moment = known.figures.moments.get(node)
    silent = known.silent.get(node, "")
    gone = bool(silent) and not known.over_time
    return TopRow(
        kind=kind,
        node=node,
        gpu_uuid=row_key[1],
        age_s=max(0.0, known.now - moment) if moment is not None else None,
        reason=silent,
        cells=tuple(
            TopCell(metric=each.metric, reason=silent)
            if gone
            else _cell(each.metric, row_key, known)
            for each in columns
        ),
    )


def _cell(metric: Shown, row_key: RowKey, known: Known, of: int = 1) -> TopCell:
    figures, key = known.figures, (metric, row_key)
    value = figures.values.get(key)
    if value is None:
        absence = _absence(metric, row_key, known)
        return TopCell(metric=metric, reason=absence.reason, last_error=absence.last_error)
    of = figures.of.get((metric, row_key[0]), of) if not row_key[1] else 1
    return _measured(metric, row_key, figures, value, of)


def _measured(metric: Shown, row_key: RowKey, figures: Figures, value: float, of: int) -> TopCell:
    origin = figures.origin(metric, row_key[0])
    points = figures.history.get((metric, row_key), ())
    return TopCell(
        metric=metric,
        value=value,
        peak=figures.peaks.get((metric, row_key)),
        source=origin.source if origin else Provenance.HOST_LOCAL_PROBE,
        scope=origin.scope if origin and origin.scope == "node" else "",
        of=of,
        history=tuple(TopPoint(time=time, value=each) for time, each in points),
    )


def _absence(metric: Shown, row_key: RowKey, known: Known) -> Absence:
    series = SHOWN[metric].series
    computed = known.figures.none.get((metric, row_key))
    if computed:
        early = computed == NOTHING_DONE and known.young and known.running
        return Absence(series, NONE_TIMED_YET if early else computed)
    absence = known.missing.get((metric, row_key[0]))
    if absence is None and row_key == ALL:
        absence = next((each for (of, _), each in known.missing.items() if of is metric), None)
    if absence is not None:
        return absence
    if SHOWN[metric].per_gpu and known.has_gpus is False:
        return Absence(series, NO_GPUS)
    if row_key == ALL and known.silent and len(known.silent) == len(known.nodes):
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
    mode: TopMode, metric: Shown, known: Known, values: Mapping[RowKey, float]
) -> TopCell:
    if known.summary is not None:
        return _cell(metric, ALL, replace(known, figures=known.summary, summary=None))
    if mode is TopMode.SUMMARY:
        origins = known.figures.origins.get((metric, ""), ())
        return _cell(metric, ALL, known, sum(each.series for each in origins))
    current = {
        row_key: value
        for row_key, value in values.items()
        if known.over_time or row_key[0] not in known.silent
    }
    weights = {
        row_key: 1 if row_key[1] else known.figures.of.get((metric, row_key[0]), 1)
        for row_key in current
    }
    value = _summed(metric, current, weights)
    if value is None:
        return _cell(metric, ALL, known)
    return _measured(metric, ALL, known.figures, value, sum(weights.values()))


def _summed(
    metric: Shown, values: Mapping[RowKey, float], weights: Mapping[RowKey, int]
) -> float | None:
    """Combine values; a node's mean is weighted by its number of GPUs."""
    if not values:
        return None
    summing = SHOWN[metric].summing
    if summing is Summing.WORST:
        return max(values.values())
    if summing is Summing.TOTAL:
        return math.fsum(values.values())
    whole = math.fsum(value * weights[row_key] for row_key, value in values.items())
    return whole / sum(weights.values())
