"""Numbers with units, and durations, as text. Pure."""

from __future__ import annotations

from lattice.domain.measured import Shown
from lattice.features.watch.model import WatchFigure

MISSING = "—"
_NAMES = {
    Shown.GPU_UTILIZATION: "gpu",
    Shown.GPU_MEMORY_USED: "gpu mem",
    Shown.GPU_POWER_DRAW: "power",
    Shown.CPU_UTILIZATION: "cpu",
    Shown.MEMORY_USED: "mem",
    Shown.NETWORK_TX_BYTES: "sent",
    Shown.NETWORK_RX_BYTES: "received",
    Shown.IO_READ_BYTES: "read",
    Shown.IO_WRITE_BYTES: "written",
    Shown.IO_LATENCY_P99: "io p99",
    Shown.GPU_TEMPERATURE: "gpu temp",
    Shown.GPU_SM_OCCUPANCY: "sm occupancy",
    Shown.MEMORY_CACHE: "cache",
    Shown.MEMORY_LIMIT: "mem limit",
    Shown.OOM_KILLS: "oom kills",
}


def short_name(metric: Shown) -> str:
    """Return the short name for a line of many figures."""
    return _NAMES[metric]


def shown(figure: WatchFigure) -> str:
    """Format a figure: `97 %`, `31.2 GiB`, `1.2 MiB/s`; `—` if it was not measured."""
    if figure.value is None:
        return MISSING
    return number(figure.value, figure.unit)


def number(value: float, unit: str) -> str:
    """Format a value with its unit."""
    if unit in {"bytes", "bytes/s"}:
        return _bytes(value) + ("/s" if unit == "bytes/s" else "")
    if unit == "µs":
        return f"{value / 1000:.3g} ms" if value >= 1000 else f"{value:.3g} µs"
    text = f"{value:.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"
    return f"{text} {unit}".rstrip()


def _bytes(value: float) -> str:
    """Format with the same digits as `top`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 999.5 or unit == "TiB":
            is_whole = unit == "B" or value >= 100
            return f"{value:.0f} {unit}" if is_whole else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def span(seconds: float) -> str:
    """Format a duration: `12 s`, `4 m`, `2 h 5 m`."""
    minutes = int(seconds // 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} m"
    return f"{minutes} m" if minutes else f"{seconds:.0f} s"
