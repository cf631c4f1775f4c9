"""A job's cards: the last health verdict of each, and the width of its PCIe link.

The width is read from sysfs, by the PCI address that the NVIDIA driver reports for the card.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lattice.domain.jobfacts import FactAbsence, FactKind, GpuFact
from lattice.domain.kerneltext import figure
from lattice.domain.node import HealthState, NodeHealth
from lattice.probes.gpuhealth import CardCondition, ExpectedGpus, GpuHealthJudge, GpuReading
from lattice.probes.kernel_files import names_in, read_text

_UUID = re.compile(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]{8,64})\s*")
_WIDEST = 64
HEALTH_NAMES = {
    HealthState.HEALTHY: "ok",
    HealthState.WARNING: "warning",
    HealthState.FAILURE: "failure",
}
NOT_LOOKED = "the cards were not looked at yet"
NOT_KNOWN = "which GPUs Slurm gave the job is not known yet"


def gpu_facts(
    uuids: Sequence[str] | None,
    reading: GpuReading | None,
    health: NodeHealth,
    widths: Widths,
) -> tuple[tuple[GpuFact, ...], tuple[FactAbsence, ...]]:
    """`uuids`: the job's cards; None if they are not known. An empty list gives no facts."""
    if uuids is None:
        return (), (FactAbsence(FactKind.GPUS, NOT_KNOWN),)
    if uuids and reading is None:
        return (), (FactAbsence(FactKind.GPUS, NOT_LOOKED),)
    if uuids and reading is not None and not reading.cards:
        return (), (FactAbsence(FactKind.GPUS, reading.failure or reading.nothing or NOT_LOOKED),)
    cards = {each.uuid: each for each in reading.cards} if reading is not None else {}
    facts, absences = [], []
    for uuid in uuids:
        card = cards.get(uuid)
        width, best = widths.of(uuid)
        if card is None:
            # A MIG instance, or a card that is gone: it has no verdict.
            absences.append(FactAbsence(FactKind.GPUS, "nobody judged it", uuid))
        found, reasons = _judged(card, reading, health) if card and reading else ("", "")
        facts.append(
            GpuFact(
                uuid=uuid,
                name=card.name if card else "",
                health=found,
                words=reasons,
                pcie_width=width,
                pcie_best_width=best,
                nvlinks=card.nvlinks if card else None,
                nvlink_bytes_s=card.nvlink_bytes_s if card else None,
            )
        )
    return tuple(facts), tuple(absences)


def _judged(card: CardCondition, reading: GpuReading, node: NodeHealth) -> tuple[str, str]:
    """The card's own verdict, and lasting warnings about it from the node's verdict."""
    alone = GpuHealthJudge(ExpectedGpus()).see(GpuReading(time=reading.time, cards=(card,)))
    lasting = [each for each in node.words if card.uuid in each]
    reasons = "; ".join(dict.fromkeys((*alone.words, *lasting)))
    if alone.health is HealthState.HEALTHY and lasting:
        return HEALTH_NAMES[HealthState.WARNING], reasons
    return HEALTH_NAMES.get(alone.health, ""), reasons


class Widths:
    """The number of PCIe lanes of each card, current and maximum."""

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._cards = f"{proc}/driver/nvidia/gpus"
        self._devices = f"{sys}/bus/pci/devices"

    def of(self, uuid: str) -> tuple[int | None, int | None]:
        """Current and maximum; None: not known."""
        for address in names_in(self._cards):
            text = read_text(f"{self._cards}/{address}/information") or ""
            if any(
                (found := _UUID.fullmatch(line)) and found[1] == uuid for line in text.splitlines()
            ):
                return self._width(address, "current"), self._width(address, "max")
        return None, None

    def _width(self, address: str, which: str) -> int | None:
        text = read_text(f"{self._devices}/{address.lower()}/{which}_link_width")
        found = figure(text)
        return found if found is not None and 0 < found <= _WIDEST else None
