"""Which maker's cards a node has: the probe that reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lattice.base.clock import Clock
from lattice.probes.amd import AmdProbe
from lattice.probes.card_probe import CardProbe
from lattice.probes.nvidia import NvidiaProbe
from lattice.probes.nvml import AMD_DRIVER

NVIDIA_DRIVER = Path("/proc/driver/nvidia")
"""There while NVIDIA's driver is loaded."""


def node_cards(
    gpus_of: Callable[[int], tuple[int, ...] | None],
    clock: Clock,
    devices: Sequence[str],
    *,
    amd_driver: Path = AMD_DRIVER,
    nvidia_driver: Path = NVIDIA_DRIVER,
) -> CardProbe:
    """The probe of AMD's cards where only AMD's driver is loaded, and otherwise NVIDIA's.

    Drivers are loaded at boot, before the agent starts.
    """
    if amd_driver.exists() and not nvidia_driver.exists():
        return AmdProbe(gpus_of, clock, devices=devices)
    return NvidiaProbe(gpus_of, clock, devices=devices)
