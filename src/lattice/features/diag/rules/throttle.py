"""A GPU that is slowed down by heat or for want of power. Pure.

A card at full work meets its own power limit: that alone is no fault. It is one if the card is held
back though it draws far less than its limit, or if the hardware pulls the brake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lattice.domain.metric import Sample
from lattice.domain.nodelook import NodeSight
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.cards import Card, health_of
from lattice.features.diag.rules.saying import Line, Seen, card, findings, of_metric, per_gpu

_CAPPED = "sw_power_cap"
_AT_LIMIT = 0.85
_HOT = "thermal"


class Throttle:
    """Reads the reasons for which each card is slowed down."""

    name, title, area = "throttle", "GPU clocks held back", Area.GPU
    explains = frozenset({"straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        seen, unseen = of_metric(case, "gpu_throttled", _cards)
        seen = [_with_health(case, each) if each.verdict.is_sick else each for each in seen]
        yield from findings(
            self,
            case,
            seen,
            unseen,
            Line(
                remedy="Tell the site: the card is not cooled or powered well enough. Leave the "
                "node out next time (`sbatch --exclude=NODE`).",
            ),
        )


def cards_held_back(case: Case) -> frozenset[Card]:
    """Those of which this rule tells."""
    seen, _ = of_metric(case, "gpu_throttled", _cards)
    return frozenset((each.subject.node, each.subject.gpu) for each in seen if each.verdict.is_sick)


def _with_health(case: Case, seen: Seen) -> Seen:
    judged = health_of(case, seen.subject.node, seen.subject.gpu)
    return replace(seen, words=f"{seen.words}; it is judged {judged}") if judged else seen


def _cards(node: str, sight: NodeSight, samples: Sequence[Sample]) -> Iterator[Seen]:
    reasons: dict[str, list[str]] = {}
    for each in samples:
        found = reasons.setdefault(each.label("gpu_uuid"), [])
        if each.value > 0:
            found.append(each.label("reason"))
    watts, limits = per_gpu(sight, "gpu_power_watts"), per_gpu(sight, "gpu_power_limit_watts")
    heat = per_gpu(sight, "gpu_temperature_celsius")
    for uuid, given in reasons.items():
        held = [each for each in given if _HOT in each or "slowdown" in each or "brake" in each]
        if _CAPPED in given and uuid in watts and uuid in limits:
            drawn, limit = watts[uuid].value, limits[uuid].value
            if limit and drawn < _AT_LIMIT * limit:
                held.append(f"{_CAPPED} at {drawn:.0f} W of {limit:.0f} W")
        degrees = f" at {heat[uuid].value:.0f} °C" if uuid in heat else ""
        words = (
            f"{card(uuid)} on {node} is slowed down{degrees} ({', '.join(sorted(held))})"
            if held
            else "none by heat or for want of power"
        )
        hot = any(_HOT in each or "slowdown" in each or "brake" in each for each in given)
        sick = Verdict.BAD if hot else Verdict.ATTENTION
        yield Seen(
            subject=Subject(node=node, gpu=uuid),
            verdict=sick if held else Verdict.OK,
            words=words,
        )
