"""A GPU met a memory error that it could not correct. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import Rule, Severity
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.rules.finding import Finding, Glance, Level, gpu_name
from lattice.features.watch.node.rules.rises import Rises


class Ecc:
    """Fires when the count rises; passes when it has not for a while."""

    rule = Rule.ECC

    def __init__(self, bounds: Bounds) -> None:
        self._rises = Rises(bounds.event_kept_s)

    def look(self, glance: Glance) -> Iterator[Finding]:
        cards = glance.by_gpu("gpu_ecc_uncorrected_total")
        self._rises.look({uuid: each.value for uuid, each in cards.items()}, glance.time)
        for uuid in cards:
            rise = self._rises.standing(uuid, glance.time)
            name = gpu_name(uuid)
            if rise is None:
                yield Finding(subject=uuid, level=Level.GOOD, words=f"No new error of {name}.")
                continue
            errors = f"{rise.count:.0f} memory errors" if rise.count > 1 else "a memory error"
            yield Finding(
                subject=uuid,
                level=Level.BAD,
                severity=Severity.CRITICAL,
                value=rise.count,
                bound=0.0,
                since=rise.first,
                words=f"{name} met {errors} that could not be corrected.",
                remedy="Results since then may be wrong: go back to a checkpoint from before, and "
                "tell the site.",
            )
