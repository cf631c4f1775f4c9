"""A GPU that is slowed down: it is too hot, or has no more power to draw. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import Rule, Severity
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.rules.finding import Finding, Glance, Lasting, Level, gpu_name

_THERMAL, _POWER, _HARDWARE = "thermal", "power", "hw_slowdown"
"""What a reason has in its name; the last stands beside others, and alone where nobody says why."""
_HEAT = "heat"


class Throttle:
    """For heat at once, for power once it lasts: at full load a card often meets its limit."""

    rule = Rule.THROTTLE

    def __init__(self, bounds: Bounds) -> None:
        self._power_s = bounds.power_throttle_s
        self._slowed = Lasting()

    def look(self, glance: Glance) -> Iterator[Finding]:
        reasons: dict[str, list[str]] = {}
        for each in glance.of("gpu_throttled"):
            found = reasons.setdefault(each.label("gpu_uuid"), [])
            if each.value > 0:
                found.append(each.label("reason"))
        self._slowed.keep_only(reasons)
        for uuid, given in reasons.items():
            why = _why(given)
            if not why:
                self._slowed.ends(uuid)
                yield Finding(
                    subject=uuid, level=Level.GOOD, words=f"{gpu_name(uuid)} is not slowed down."
                )
                continue
            since, _ = self._slowed.holds(uuid, glance)
            at_once = why == _HEAT or _HARDWARE in given
            lasts = at_once or glance.time - since >= self._power_s
            yield self._finding(uuid, why, given, since, at_once=at_once, lasts=lasts)

    @staticmethod
    def _finding(
        uuid: str, why: str, given: list[str], since: float, *, at_once: bool, lasts: bool
    ) -> Finding:
        return Finding(
            subject=uuid,
            level=Level.BAD if lasts else Level.BETWEEN,
            severity=Severity.CRITICAL if at_once else Severity.WARNING,
            since=since,
            words=f"{gpu_name(uuid)} is slowed down by {why} ({', '.join(sorted(given))}).",
            remedy="Tell the site: the card is not cooled or not powered well enough."
            if at_once
            else "Nothing is broken: the card is at its limit. Compare it with the others of the "
            "job; if it alone is slow, tell the site.",
        )


def _why(given: list[str]) -> str:
    if any(_THERMAL in each for each in given):
        return _HEAT
    if any(_POWER in each for each in given):
        return "its power limit"
    return "its own protection" if _HARDWARE in given else ""
