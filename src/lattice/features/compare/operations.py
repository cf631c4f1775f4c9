"""The operation of the feature, and the function that builds calls of it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from lattice.base.call import Call
from lattice.base.errors import UsageError
from lattice.base.operation import FieldRule, Operation
from lattice.domain.request_fields import checked_reference
from lattice.features.compare.model import FEWEST_RUNS, MOST_RUNS, Align, Comparison, metrics_named

_LONGEST = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Two runs or more, and metrics; without metrics the default ones."""

    ids: Annotated[
        tuple[str, ...], FieldRule(longest=_LONGEST, commas=True, check=checked_reference)
    ]
    metrics: Annotated[tuple[str, ...], FieldRule(longest=_LONGEST, commas=True)] = ()
    align: Align = Align.RELATIVE


COMPARE_METRICS = Operation(
    rpc="lattice.v1.CompareService/CompareMetrics",
    method="GET",
    path="/compare",
    request=CompareRequest,
    answer=Comparison,
    # The metric store reads whole runs.
    timeout_s=120.0,
)


def compare_metrics(*references: str, metrics: Iterable[str] = ()) -> Call[Comparison]:
    """Compare two runs or more with the first; without metrics the default ones."""
    if not FEWEST_RUNS <= len(references) <= MOST_RUNS:
        raise UsageError(
            f"It takes {FEWEST_RUNS} to {MOST_RUNS} allocations to compare.",
            hint="The first is the baseline: `lattice compare 41 42`.",
        )
    wanted = tuple(each.value for each in metrics_named(tuple(metrics)))
    call = COMPARE_METRICS.call(CompareRequest(ids=references, metrics=wanted))
    # The alignment is always part of the request.
    return call._replace(params=(*call.params, ("align", Align.RELATIVE.value)))


SDK: Mapping[str, Callable[..., object]] = {
    "compare": compare_metrics,
}
"""Method names of the SDK, and the functions that build their calls."""
