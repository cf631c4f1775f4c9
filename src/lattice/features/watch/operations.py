"""The operation of the feature, and the function that builds calls of it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypedDict, Unpack

from lattice.base.call import StreamCall
from lattice.base.choices import one_of
from lattice.base.operation import StreamOperation
from lattice.domain.measured import Shown
from lattice.domain.request_fields import Reference
from lattice.features.watch.model import (
    WatchAlert,
    WatchEnd,
    WatchMeasured,
    WatchMode,
    WatchNode,
    WatchNote,
    WatchProgress,
    WatchQuery,
    WatchRecord,
    WatchState,
)
from lattice.features.watch.stream_dedup import WatchDeduplicator

KINDS: dict[str, type[WatchRecord]] = {
    "measured": WatchMeasured,
    "alert": WatchAlert,
    "node": WatchNode,
    "mode": WatchMode,
    "progress": WatchProgress,
    "state": WatchState,
    "ended": WatchEnd,
    "note": WatchNote,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest(WatchQuery):
    """The query, and the allocation."""

    id: Reference


STREAM_METRICS = StreamOperation(
    rpc="lattice.v1.WatchService/StreamMetrics",
    path="/allocations/{id}/watch",
    request=WatchRequest,
    kinds=KINDS,
)


class WatchChoice(TypedDict, total=False):
    """Options of a watch; by default all records with the default metrics."""

    metrics: tuple[str, ...]
    """Names such as `gpu_utilization`."""
    alerts_only: bool


def watch(
    reference: str,
    *,
    cursor: str = "",
    signs_of_life: bool = False,
    **choice: Unpack[WatchChoice],
) -> StreamCall[WatchRecord]:
    """Stream all records from now on, until the job is over."""
    request = WatchRequest(
        id=reference,
        metrics=tuple(one_of(Shown, each, "metric") for each in choice.get("metrics", ())),
        alerts_only=choice.get("alerts_only", False),
        cursor=cursor,
    )
    return STREAM_METRICS.call(request, lambda: WatchDeduplicator(heartbeats=signs_of_life))


SDK: Mapping[str, Callable[..., object]] = {
    "watch": watch,
}
"""Method names of the SDK, and the functions that build their calls."""
