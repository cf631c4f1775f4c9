"""Packets lost to errors, as a share of all between two snapshots. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import AlertRule
from lattice.domain.metric import Sample
from lattice.features.watch.node.rules.finding import AlertFinding, AlertLevel, SnapshotWindow
from lattice.observe.conditions import is_network_lossy, packet_error_percent
from lattice.observe.thresholds import Thresholds

_CLEAR = 0.5
_JOB = "job"


class NetworkErrors:
    """Uses the job's own packets if they are counted, else the whole node's."""

    rule = AlertRule.NETWORK_ERRORS

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._bound = thresholds.network_error_percent
        self._last: dict[str, tuple[float, float]] = {}

    def look(self, glance: SnapshotWindow) -> Iterator[AlertFinding]:
        packets = {each.label("scope"): each for each in glance.of("network_packets_total")}
        errors = {each.label("scope"): each for each in glance.of("network_errors_total")}
        scopes = sorted(packets.keys() & errors.keys(), key=lambda each: (each != _JOB, each))
        if scopes:
            yield self._judged(scopes[0], packets[scopes[0]], errors[scopes[0]])

    def _judged(self, scope: str, packets: Sample, errors: Sample) -> AlertFinding:
        last = self._last.get(scope)
        self._last = {scope: (packets.value, errors.value)}
        if last is None:
            return AlertFinding(level=AlertLevel.BETWEEN)
        sent, lost = packets.value - last[0], errors.value - last[1]
        if sent < 0 or lost < 0:
            return AlertFinding(level=AlertLevel.BETWEEN)
        share = packet_error_percent(lost, sent, self._thresholds)
        if share is None:
            return AlertFinding(level=AlertLevel.BETWEEN)
        level = AlertLevel.BAD if is_network_lossy(share, self._thresholds) else AlertLevel.BETWEEN
        if share <= self._bound * _CLEAR:
            level = AlertLevel.GOOD
        return self._finding(level, share, scope)

    def _finding(self, level: AlertLevel, share: float, scope: str) -> AlertFinding:
        whose = "" if scope == _JOB else " of the whole node"
        return AlertFinding(
            level=level,
            value=share,
            bound=self._bound,
            unit="%",
            words=f"{share:.2g} % of the packets{whose} were lost to errors; "
            f"the bound is {self._bound:g} %.",
            remedy="Tell the site: a cable, a port or a driver is at fault, not the job.",
        )
