"""The judge of one life of one job: every rule at every snapshot, and what that changes. Pure.

    quiet ─ bad ─► firing ─ good ─► quiet          told: firing, cleared
                     │  ▲
           unmeasured▼  │bad
                   unknown ─ good ─► quiet         told: unknown, then firing again or cleared

What is between bad and good changes nothing, so nothing flaps; and what is not measured any more is
never good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lattice.domain.alert import Alert, Judge, Phase, Progress, Rule
from lattice.domain.measured import JobSnapshot
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.progress import ProgressSigns
from lattice.features.watch.node.rules.ecc import Ecc
from lattice.features.watch.node.rules.finding import Finding, Glance, Level, RuleMachine
from lattice.features.watch.node.rules.gpu_hang import GpuHang
from lattice.features.watch.node.rules.gpu_idle import GpuIdle
from lattice.features.watch.node.rules.gpu_memory import GpuMemory
from lattice.features.watch.node.rules.io_latency import IoLatency
from lattice.features.watch.node.rules.network_errors import NetworkErrors
from lattice.features.watch.node.rules.oom_kill import OomKill
from lattice.features.watch.node.rules.throttle import Throttle
from lattice.features.watch.node.rules.xid import Xid

__all__ = ["AlertJudge", "Bounds", "judge_factory"]

_RULES: tuple[Callable[[Bounds], RuleMachine], ...] = (
    GpuIdle,
    GpuHang,
    GpuMemory,
    NetworkErrors,
    IoLatency,
    OomKill,
    Throttle,
    Xid,
    Ecc,
)


class AlertJudge:
    """`lattice.domain.alert.Judge`. One a life of a job on a node."""

    def __init__(self, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
        self._rules = [make(bounds) for make in _RULES]
        self._signs = ProgressSigns(bounds)
        self._before: JobSnapshot | None = None
        self._since: float | None = None
        self._standing: dict[tuple[str, str], Alert] = {}

    @property
    def firing(self) -> tuple[Alert, ...]:
        """Also what is unknown by now: it has not been seen to pass."""
        return tuple(self._standing.values())

    @property
    def progress(self) -> Progress:
        return self._signs.told

    @property
    def since(self) -> float | None:
        return self._since

    def see(self, snapshot: JobSnapshot, output: float | None) -> tuple[Alert, ...]:
        """What this snapshot changes. One that is not later than the one before changes nothing."""
        before = self._before
        if before is not None and snapshot.time <= before.time:
            return ()
        self._before = snapshot
        if self._since is None:
            self._since = snapshot.time
        self._signs.see(before, snapshot, output)
        glance = Glance(before, snapshot, self._signs.told, progress_known=self._signs.known)
        return tuple(change for rule in self._rules for change in self._judged(rule, glance))

    def _judged(self, rule: RuleMachine, glance: Glance) -> Iterator[Alert]:
        found = {each.subject: each for each in rule.look(glance)}
        for name, subject in self._standing:
            if name == rule.rule.value and subject not in found:
                found[subject] = Finding(subject=subject, level=Level.UNMEASURED)
        for each in found.values():
            change = self._changed(rule.rule, each, glance.time)
            if change is not None:
                yield change

    def _changed(self, rule: Rule, finding: Finding, time: float) -> Alert | None:
        key = (rule.value, finding.subject)
        stands = self._standing.get(key)
        if finding.level is Level.BAD:
            alert = _firing(rule, finding, time, stands)
            self._standing[key] = alert
            return alert if stands is None or stands.phase is Phase.UNKNOWN else None
        if stands is None:
            return None
        if finding.level is Level.GOOD:
            del self._standing[key]
            return _cleared(stands, finding, time)
        if finding.level is Level.UNMEASURED and stands.phase is Phase.FIRING:
            self._standing[key] = _unknown(stands, time)
            return self._standing[key]
        return None


def _firing(rule: Rule, finding: Finding, time: float, stands: Alert | None) -> Alert:
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


def _cleared(stands: Alert, finding: Finding, time: float) -> Alert:
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


def judge_factory(bounds: Bounds = Bounds()) -> Callable[[], Judge]:  # noqa: B008 - frozen
    """Makes a judge for each life of a job."""
    return lambda: AlertJudge(bounds)
