"""A GPU had an uncorrectable memory error. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import AlertRule, Severity
from lattice.features.watch.node.rules.finding import (
    AlertFinding,
    AlertLevel,
    SnapshotWindow,
    gpu_name,
)
from lattice.features.watch.node.rules.rises import Rises
from lattice.observe.thresholds import Thresholds


class Ecc:
    """Fires when the count rises; clears when it has not risen for a while."""

    rule = AlertRule.ECC

    def __init__(self, thresholds: Thresholds) -> None:
        self._rises = Rises(thresholds.event_clear_s)

    def look(self, glance: SnapshotWindow) -> Iterator[AlertFinding]:
        cards = glance.by_gpu("gpu_ecc_uncorrected_total")
        self._rises.look({uuid: each.value for uuid, each in cards.items()}, glance.time)
        for uuid in cards:
            rise = self._rises.standing(uuid, glance.time)
            name = gpu_name(uuid)
            if rise is None:
                yield AlertFinding(
                    subject=uuid, level=AlertLevel.GOOD, words=f"No new error of {name}."
                )
                continue
            errors = f"{rise.count:.0f} memory errors" if rise.count > 1 else "a memory error"
            yield AlertFinding(
                subject=uuid,
                level=AlertLevel.BAD,
                severity=Severity.CRITICAL,
                value=rise.count,
                bound=0.0,
                since=rise.first,
                words=f"{name} met {errors} that could not be corrected.",
                remedy="Results since then may be wrong: go back to a checkpoint from before, and "
                "tell the site.",
            )
