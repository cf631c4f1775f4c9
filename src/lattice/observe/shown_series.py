"""The expression of a shown metric, the same wherever it is shown. Pure.

Series of one node and GPU count once, whatever their source. There are two of them for a while
after the source of a metric has changed. There are always two if a site has its own exporter.
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice.domain.measured import SHOWN, Making, Shown, Summing
from lattice.observe.metric_query import (
    Expression,
    Gather,
    Gathered,
    Over,
    OwnerFilter,
    Quantile,
    Ranged,
    Scaled,
    While,
)
from lattice.observe.windows import Window

NODE = ("node",)
NODE_AND_GPU = ("node", "gpu_uuid")
"""What is measured once: a node, or one of its GPUs."""
HEARTBEATS = ("cpu_seconds_total", "gpu_utilization_percent", "memory_used_bytes")
"""Every measured node has at least one of these series."""
_GATHER = {Summing.MEAN: Gather.MEAN, Summing.TOTAL: Gather.SUM, Summing.WORST: Gather.MOST}


def shown_series(
    owner: OwnerFilter, metric: Shown, window: Window, by: tuple[str, ...] = ()
) -> Expression:
    """One value for each group of `by`, in the unit that people see.

    `by` is empty, `NODE` or `NODE_AND_GPU`.
    """
    value, factor = stored_series(owner, metric, window, by), SHOWN[metric].factor
    return value if factor == 1.0 else Scaled(value, factor)


def stored_series(
    owner: OwnerFilter, metric: Shown, window: Window, by: tuple[str, ...] = ()
) -> Expression:
    """The same in the unit of the stored series."""
    showing = SHOWN[metric]
    series = owner.of(showing.series)
    each: Expression
    if showing.making is Making.LAST:
        each = Ranged(window.gauge, series, window.gauge_s)
    else:
        each = Ranged(Over.RATE, series, window.rate_s)
        if window.fresh_only:
            each = While(each, Ranged(Over.LAST, series, window.gauge_s))
    once: Expression
    if showing.making is Making.P99:
        once = Quantile(0.99, Gathered(Gather.MOST, each, ("node", "le")))
    else:
        once = Gathered(Gather.MOST, each, NODE_AND_GPU)
    return once if by == NODE_AND_GPU else Gathered(_GATHER[showing.summing], once, by)


def gauges_by_name(
    owner: OwnerFilter, gauges: Sequence[Shown], window: Window, by: tuple[str, ...] = ()
) -> Expression:
    """Several gauges with the same summing, in one expression at the cost of one.

    It is the expression of each of them, with the label `__name__` in every group.
    """
    (summing,) = {SHOWN[each].summing for each in gauges}
    each = Ranged(window.gauge, owner.of(*(SHOWN[one].series for one in gauges)), window.gauge_s)
    once = Gathered(Gather.MOST, each, ("__name__", *NODE_AND_GPU))
    if by == NODE_AND_GPU:
        return once
    return Gathered(_GATHER[summing], once, ("__name__", *by))
