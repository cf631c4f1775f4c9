"""Whether a job makes progress, as far as its node can tell. Pure.

`Thresholds` defines the signs: output that grew, a share of a core, reads and writes, and network
traffic of the job itself. Traffic of the whole node is no sign: it may be another job's.
"""

from __future__ import annotations

from lattice.domain.alert import Progress
from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.observe.thresholds import Thresholds

_JOB = "job"


class ProgressSigns:
    """Records when each sign last changed, from every snapshot."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.told = Progress()
        self.known = False
        """True if output, storage or the job's network is measured now. Otherwise a lack of
        progress can't be known.
        """

    def see(self, before: JobSnapshot | None, now: JobSnapshot, output: float | None) -> None:
        thresholds, told = self._thresholds, self.told
        processor = _rate(before, now, Shown.CPU_UTILIZATION)
        storage = _rate(before, now, Shown.IO_READ_BYTES, Shown.IO_WRITE_BYTES)
        network = _rate(before, now, Shown.NETWORK_TX_BYTES, Shown.NETWORK_RX_BYTES, scope=_JOB)
        last_output = max(filter(None, (output, told.output)), default=None)
        self.known = any(each is not None for each in (last_output, storage, network))
        self.told = Progress(
            output=last_output,
            processor=_moved(processor, thresholds.progress_cpu_percent, now, told.processor),
            storage=_moved(storage, thresholds.progress_storage_bytes_s, now, told.storage),
            network=_moved(network, thresholds.progress_network_bytes_s, now, told.network),
        )


def _moved(rate: float | None, bound: float, now: JobSnapshot, last: float | None) -> float | None:
    return now.time if rate is not None and rate >= bound else last


def _rate(
    before: JobSnapshot | None, now: JobSnapshot, *metrics: Shown, scope: str = ""
) -> float | None:
    """Return the sum of all rates, or None if none was measured."""
    rates = [
        each.value
        for metric in metrics
        for each in shown_of(metric, before, now)
        if isinstance(each, ShownValue) and (not scope or dict(each.labels).get("scope") == scope)
    ]
    return sum(rates) if rates else None
