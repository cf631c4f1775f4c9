"""Judges one run of one job: applies every rule to every snapshot. Pure.

    quiet ─ bad ─► firing ─ good ─► quiet          reported: firing, cleared.
                    │  ▲
          unmeasured▼  │bad
                   unknown ─ good ─► quiet         reported: unknown, then firing or cleared.

Values between bad and good change nothing, so alerts do not flap. What is no longer measured is
never good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lattice.domain.alert import Alert, AlertRule, Judge, Phase, Progress
from lattice.domain.measured import JobSnapshot
from lattice.features.watch.node.progress import ProgressSigns
from lattice.features.watch.node.rules.ecc import Ecc
from lattice.features.watch.node.rules.finding import (
    AlertFinding,
    AlertLevel,
    RuleMachine,
    SnapshotWindow,
)
from lattice.features.watch.node.rules.gpu_hang import GpuHangAlert
from lattice.features.watch.node.rules.gpu_idle import GpuIdleAlert
from lattice.features.watch.node.rules.gpu_memory import GpuMemory
from lattice.features.watch.node.rules.io_latency import IoLatencyAlert
from lattice.features.watch.node.rules.network_errors import NetworkErrors
from lattice.features.watch.node.rules.oom_kill import OomKillAlert
from lattice.features.watch.node.rules.throttle import ThrottleAlert
from lattice.features.watch.node.rules.xid import Xid
from lattice.observe.thresholds import Thresholds

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
        return self._signs.told

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
        glance = SnapshotWindow(
            before, snapshot, self._signs.told, progress_known=self._signs.known
        )
        return tuple(change for rule in self._rules for change in self._judged(rule, glance))

    def _judged(self, rule: RuleMachine, glance: SnapshotWindow) -> Iterator[Alert]:
        found = {each.subject: each for each in rule.look(glance)}
        for name, subject in self._standing:
            if name == rule.rule.value and subject not in found:
                found[subject] = AlertFinding(subject=subject, level=AlertLevel.UNMEASURED)
        for each in found.values():
            change = self._changed(rule.rule, each, glance.time)
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
        words=finding.words,
        remedy=finding.remedy,
    )


def _cleared(stands: Alert, finding: AlertFinding, time: float) -> Alert:
    return Alert(
        rule=stands.rule,
        subject=stands.subject,
        phase=Phase.CLEARED,
        severity=stands.severity,
        value=finding.value,
        bound=stands.bound,
        unit=stands.unit,
        since=stands.since,
        time=time,
        words=finding.words or stands.words,
    )


def _unknown(stands: Alert, time: float) -> Alert:
    return Alert(
        rule=stands.rule,
        subject=stands.subject,
        phase=Phase.UNKNOWN,
        severity=stands.severity,
        bound=stands.bound,
        unit=stands.unit,
        since=stands.since,
        time=time,
        words="What this rests on is not measured any more. It was: " + stands.words,
        remedy=stands.remedy,
    )


def judge_factory(
    thresholds: Thresholds = Thresholds(),  # noqa: B008 - frozen
) -> Callable[[], Judge]:
    """Return a factory of judges, one for each run of a job."""
    return lambda: AlertJudge(thresholds)
