"""Packets lost to errors, as a share of all between two looks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import Rule
from lattice.domain.metric import Sample
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.rules.finding import Finding, Glance, Level

_CLEAR = 0.5
_JOB = "job"


class NetworkErrors:
    """Of the job's own packets where they are told apart, else of the whole node's."""

    rule = Rule.NETWORK_ERRORS

    def __init__(self, bounds: Bounds) -> None:
        self._bound = bounds.network_error_percent
        self._least = bounds.network_least_packets
        self._last: dict[str, tuple[float, float]] = {}

    def look(self, glance: Glance) -> Iterator[Finding]:
        packets = {each.label("scope"): each for each in glance.of("network_packets_total")}
        errors = {each.label("scope"): each for each in glance.of("network_errors_total")}
        scopes = sorted(packets.keys() & errors.keys(), key=lambda each: (each != _JOB, each))
        if scopes:
            yield self._judged(scopes[0], packets[scopes[0]], errors[scopes[0]])

    def _judged(self, scope: str, packets: Sample, errors: Sample) -> Finding:
        last = self._last.get(scope)
        self._last = {scope: (packets.value, errors.value)}
        if last is None:
            return Finding(level=Level.BETWEEN)
        sent, lost = packets.value - last[0], errors.value - last[1]
        if sent < 0 or lost < 0:
            return Finding(level=Level.BETWEEN)
        if lost == 0:
            return self._finding(Level.GOOD, 0.0, scope)
        if sent < self._least:
            return Finding(level=Level.BETWEEN)
        share = lost / sent * 100
        level = Level.BAD if share > self._bound else Level.BETWEEN
        if share <= self._bound * _CLEAR:
            level = Level.GOOD
        return self._finding(level, share, scope)

    def _finding(self, level: Level, share: float, scope: str) -> Finding:
        whose = "" if scope == _JOB else " of the whole node"
        return Finding(
            level=level,
            value=share,
            bound=self._bound,
            unit="%",
            words=f"{share:.2g} % of the packets{whose} were lost to errors; "
            f"the bound is {self._bound:g} %.",
            remedy="Tell the site: a cable, a port or a driver is at fault, not the job.",
        )
