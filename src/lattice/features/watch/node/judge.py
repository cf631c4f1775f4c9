"""Judges one run of one job: applies every rule to every snapshot. Pure.

    quiet ─ bad ─► firing ─ good ─► quiet          reported: firing, cleared.
                    │  ▲
          unmeasured▼  │bad
                   unknown ─ good ─► quiet         reported: unknown, then firing or cleared.

Values between bad and good change nothing, so alerts do not flap. What is no longer measured is
never good.

Signs of progress are output that grew, a share of a core, reads and writes, and network traffic of
the job itself. Traffic of the whole node is no sign: it may be another job's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lattice.domain.alert import Alert, AlertRule, Judge, Phase, Progress
from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.features.watch.node.rules.gpu_faults import Ecc, ThrottleAlert, Xid
from lattice.features.watch.node.rules.gpu_load import GpuHangAlert, GpuIdleAlert, GpuMemory
from lattice.features.watch.node.rules.host import IoLatencyAlert, NetworkErrors, OomKillAlert
from lattice.features.watch.node.rules.rule import (
    AlertFinding,
    AlertLevel,
    RuleMachine,
    SnapshotWindow,
)
from lattice.observe.thresholds import Thresholds

_JOB = "job"
_RULES: tuple[Callable[[Thresholds], RuleMachine], ...] = (
    GpuIdleAlert,
    GpuHangAlert,
    GpuMemory,
    NetworkErrors,
    IoLatencyAlert,
    OomKillAlert,
    ThrottleAlert,
    Xid,
    Ecc,
)


class AlertJudge:
    """Implements `lattice.domain.alert.Judge`, for one run of a job on a node."""

    def __init__(self, thresholds: Thresholds = Thresholds()) -> None:  # noqa: B008 - frozen
        self._rules = [make(thresholds) for make in _RULES]
        self._signs = ProgressSigns(thresholds)
        self._before: JobSnapshot | None = None
        self._since: float | None = None
        self._standing: dict[tuple[str, str], Alert] = {}

    @property
    def firing(self) -> tuple[Alert, ...]:
        """Standing alerts, including unknown ones: they have not been seen to clear."""
        return tuple(self._standing.values())

    @property
    def progress(self) -> Progress:
        return self._signs.progress

    @property
    def since(self) -> float | None:
        return self._since

    def see(self, snapshot: JobSnapshot, output: float | None) -> tuple[Alert, ...]:
        """Return the changes by this snapshot; none if it is not newer than the last."""
        before = self._before
        if before is not None and snapshot.time <= before.time:
            return ()
        self._before = snapshot
        if self._since is None:
            self._since = snapshot.time
        self._signs.see(before, snapshot, output)
        window = SnapshotWindow(
            before, snapshot, self._signs.progress, progress_known=self._signs.known
        )
        return tuple(change for rule in self._rules for change in self._judged(rule, window))

    def _judged(self, rule: RuleMachine, window: SnapshotWindow) -> Iterator[Alert]:
        found = {each.subject: each for each in rule.check(window)}
        for name, subject in self._standing:
            if name == rule.rule.value and subject not in found:
                found[subject] = AlertFinding(subject=subject, level=AlertLevel.UNMEASURED)
        for each in found.values():
            change = self._changed(rule.rule, each, window.time)
            if change is not None:
                yield change

    def _changed(self, rule: AlertRule, finding: AlertFinding, time: float) -> Alert | None:
        key = (rule.value, finding.subject)
        stands = self._standing.get(key)
        if finding.level is AlertLevel.BAD:
            alert = _firing(rule, finding, time, stands)
            self._standing[key] = alert
            return alert if stands is None or stands.phase is Phase.UNKNOWN else None
        if stands is None:
            return None
        if finding.level is AlertLevel.GOOD:
            del self._standing[key]
            return _cleared(stands, finding, time)
        if finding.level is AlertLevel.UNMEASURED and stands.phase is Phase.FIRING:
            self._standing[key] = _unknown(stands, time)
            return self._standing[key]
        return None


def _firing(rule: AlertRule, finding: AlertFinding, time: float, stands: Alert | None) -> Alert:
    begun = finding.since if finding.since is not None else time
    still = stands is not None and stands.phase is Phase.FIRING
    return Alert(
        rule=rule,
        subject=finding.subject,
        phase=Phase.FIRING,
        severity=finding.severity,
        value=finding.value,
        bound=finding.bound,
        unit=finding.unit,
        since=stands.since if stands is not None else begun,
        time=stands.time if stands is not None and still else time,
        text=finding.text,
        remedy=finding.remedy,
    )


def _cleared(stands: Alert, finding: AlertFinding, time: float) -> Alert:
    text = finding.text or stands.text
    return replace(
        stands, phase=Phase.CLEARED, value=finding.value, time=time, text=text, remedy=""
    )


def _unknown(stands: Alert, time: float) -> Alert:
    text = f"What this rests on is not measured any more. It was: {stands.text}"
    return replace(stands, phase=Phase.UNKNOWN, value=None, time=time, text=text)


class ProgressSigns:
    """Records when each sign last changed, from every snapshot."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.progress = Progress()
        self.known = False
        """True if output, storage or the job's network is measured now. Otherwise a lack of
        progress can't be known.
        """

    def see(self, before: JobSnapshot | None, now: JobSnapshot, output: float | None) -> None:
        thresholds, last = self._thresholds, self.progress
        processor = _rate(before, now, Shown.CPU_UTILIZATION)
        storage = _rate(before, now, Shown.IO_READ_BYTES, Shown.IO_WRITE_BYTES)
        network = _rate(before, now, Shown.NETWORK_TX_BYTES, Shown.NETWORK_RX_BYTES, scope=_JOB)
        last_output = max(filter(None, (output, last.output)), default=None)
        self.known = any(each is not None for each in (last_output, storage, network))
        self.progress = Progress(
            output=last_output,
            processor=_moved(processor, thresholds.progress_cpu_percent, now, last.processor),
            storage=_moved(storage, thresholds.progress_storage_bytes_s, now, last.storage),
            network=_moved(network, thresholds.progress_network_bytes_s, now, last.network),
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


def judge_factory(
    thresholds: Thresholds = Thresholds(),  # noqa: B008 - frozen
) -> Callable[[], Judge]:
    """Return a factory of judges, one for each run of a job."""
    return lambda: AlertJudge(thresholds)
