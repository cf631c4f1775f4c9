"""The feature's verb as a call to the server. No I/O here; the SDK makes the call."""

from __future__ import annotations

from collections.abc import Iterable

from lattice.base.call import Call, params
from lattice.base.errors import UsageError
from lattice.domain.allocation import REFERENCE_HINT, BadReference, parse_reference
from lattice.features.compare.model import (
    FEWEST_RUNS,
    MOST_RUNS,
    Align,
    Comparison,
    metrics_named,
)

_PATIENCE_S = 120.0
"""The metric store goes through whole runs."""


def compare_metrics(references: Iterable[str], *, metrics: Iterable[str] = ()) -> Call[Comparison]:
    """Two runs or more, each against the first; without metrics the usual ones."""
    try:
        names = [str(parse_reference(each)) for each in references]
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
    if not FEWEST_RUNS <= len(names) <= MOST_RUNS:
        raise UsageError(
            f"It takes {FEWEST_RUNS} to {MOST_RUNS} allocations to compare.",
            hint="The first is the baseline: `lattice compare 41 42`.",
        )
    wanted = metrics_named(tuple(metrics))
    return Call(
        "GET",
        "/v1/compare",
        Comparison,
        params(
            ids=",".join(names),
            metrics=",".join(each.value for each in wanted),
            align=Align.RELATIVE.value,
        ),
        timeout_s=_PATIENCE_S,
    )
