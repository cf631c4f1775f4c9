"""Whether a job gets on, as far as its node can tell. Pure.

What counts as a sign, and from where on, is in `Bounds`: output that grew, a noticeable share of a
core, noticeable reading and writing, and traffic where the job's own is told apart. A node's whole
traffic is no sign: it may be another's.
"""

from __future__ import annotations

from lattice.domain.alert import Progress
from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.features.watch.node.bounds import Bounds

_JOB = "job"


class ProgressSigns:
    """Fed every snapshot; remembers when each sign last moved."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.told = Progress()
        self.known = False
        """True if output, storage or the job's network is told of now: else nobody can say that a
        job does not get on."""

    def see(self, before: JobSnapshot | None, now: JobSnapshot, output: float | None) -> None:
        bounds, told = self._bounds, self.told
        processor = _rate(before, now, Shown.CPU_UTILIZATION)
        storage = _rate(before, now, Shown.IO_READ_BYTES, Shown.IO_WRITE_BYTES)
        network = _rate(before, now, Shown.NETWORK_TX_BYTES, Shown.NETWORK_RX_BYTES, scope=_JOB)
        last_output = max(filter(None, (output, told.output)), default=None)
        self.known = any(each is not None for each in (last_output, storage, network))
        self.told = Progress(
            output=last_output,
            processor=_moved(processor, bounds.progress_cpu_percent, now, told.processor),
            storage=_moved(storage, bounds.progress_storage_bytes_s, now, told.storage),
            network=_moved(network, bounds.progress_network_bytes_s, now, told.network),
        )


def _moved(rate: float | None, bound: float, now: JobSnapshot, last: float | None) -> float | None:
    return now.time if rate is not None and rate >= bound else last


def _rate(
    before: JobSnapshot | None, now: JobSnapshot, *metrics: Shown, scope: str = ""
) -> float | None:
    """Of all of them together; None if none was measured."""
    rates = [
        each.value
        for metric in metrics
        for each in shown_of(metric, before, now)
        if isinstance(each, ShownValue) and (not scope or dict(each.labels).get("scope") == scope)
    ]
    return sum(rates) if rates else None
