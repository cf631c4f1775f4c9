"""The operation of the feature, and the function that builds calls of it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lattice.base.call import Call
from lattice.base.errors import UsageError
from lattice.base.operation import Operation
from lattice.domain.request_fields import Reference
from lattice.features.top.model import TopAnswer, TopMode, TopQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRequest(TopQuery):
    """The query, and the allocation."""

    id: Reference


QUERY_METRICS = Operation(
    rpc="lattice.v1.MetricService/QueryMetrics",
    method="GET",
    path="/allocations/{id}/metrics",
    request=TopRequest,
    answer=TopAnswer,
    timeout_s=20.0,
)


def query_metrics(
    reference: str,
    *,
    mode: TopMode | str = "summary",
    duration_s: int | None = None,
    attempt: int = 0,
    history: bool = False,
    explain: bool = False,
) -> Call[TopAnswer]:
    """Get an allocation's resource use, now or over a time."""
    try:
        chosen = TopMode(mode)
    except ValueError:
        modes = ", ".join(each.value for each in TopMode)
        raise UsageError(f"{mode!r} is no mode.", hint=f"There are {modes}.") from None
    return metrics_call(
        TopRequest(
            id=reference,
            mode=chosen,
            duration_s=duration_s,
            attempt=attempt,
            history=history,
            explain=explain,
        )
    )


def metrics_call(request: TopRequest) -> Call[TopAnswer]:
    """Build the call of a request. It always names a mode, even the default."""
    call = QUERY_METRICS.call(request)
    return call._replace(params=tuple({"mode": request.mode.value, **dict(call.params)}.items()))


SDK: Mapping[str, Callable[..., object]] = {
    "metrics": query_metrics,
}
"""Method names of the SDK, and the functions that build their calls."""
