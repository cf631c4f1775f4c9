"""A GPU that is throttled by heat or its power limit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lattice.domain.alert import AlertRule, Severity
from lattice.features.watch.node.rules.finding import (
    AlertFinding,
    AlertLevel,
    Lasting,
    SnapshotWindow,
    gpu_name,
)
from lattice.observe.conditions import ThrottleCause, throttle_causes
from lattice.observe.thresholds import Thresholds


class ThrottleAlert:
    """Fires at once for heat. Power must last: a busy GPU often reaches its limit."""

    rule = AlertRule.THROTTLE

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._slowed = Lasting()

    def look(self, glance: SnapshotWindow) -> Iterator[AlertFinding]:
        reasons: dict[str, list[str]] = {}
        for each in glance.of("gpu_throttled"):
            found = reasons.setdefault(each.label("gpu_uuid"), [])
            if each.value > 0:
                found.append(each.label("reason"))
        drawn, limits = glance.by_gpu("gpu_power_watts"), glance.by_gpu("gpu_power_limit_watts")
        self._slowed.keep_only(reasons)
        for uuid, given in reasons.items():
            watts, limit = (each[uuid].value if uuid in each else None for each in (drawn, limits))
            causes = throttle_causes(given, watts, limit, self._thresholds)
            if not causes:
                self._slowed.ends(uuid)
                yield AlertFinding(
                    subject=uuid,
                    level=AlertLevel.GOOD,
                    words=f"{gpu_name(uuid)} is not slowed down.",
                )
                continue
            since, _ = self._slowed.holds(uuid, glance)
            at_once = any(each.is_fault for each in causes.values())
            lasts = at_once or glance.time - since >= self._thresholds.power_throttle_s
            at_limit = set(causes.values()) == {ThrottleCause.LIMIT}
            yield AlertFinding(
                subject=uuid,
                level=AlertLevel.BAD if lasts else AlertLevel.BETWEEN,
                severity=Severity.CRITICAL if at_once else Severity.WARNING,
                since=since,
                words=f"{gpu_name(uuid)} is slowed down by {_why(causes)} "
                f"({', '.join(sorted(given))}).",
                remedy="Nothing is broken: the card is at its limit. Compare it with the others of "
                "the job; if it alone is slow, tell the site."
                if at_limit
                else "Tell the site: the card is not cooled or not powered well enough.",
            )


def _why(causes: Mapping[str, ThrottleCause]) -> str:
    if ThrottleCause.HEAT in causes.values():
        return "heat"
    return "its power limit" if any("power" in each for each in causes) else "its own protection"
