"""Measured numbers in few letters, with their unit. Pure."""

from __future__ import annotations

_SIZES = ("", "K", "M", "G", "T", "P", "E")
_TITLES = {
    "gpu_utilization": "GPU",
    "gpu_memory_used": "GMEM",
    "gpu_power_draw": "POWER",
    "cpu_utilization": "CPU",
    "memory_used": "MEM",
    "network_tx_bytes": "TX",
    "network_rx_bytes": "RX",
    "io_read_bytes": "READ",
    "io_write_bytes": "WRITE",
    "io_latency_p99": "P99",
    "gpu_temperature": "TEMP",
    "gpu_sm_occupancy": "SM",
    "memory_cache": "CACHE",
    "memory_limit": "LIMIT",
    "oom_kills": "OOM",
}


def title(metric: str) -> str:
    """The heading of a narrow column."""
    return _TITLES.get(metric, metric.upper())


def number(value: float, unit: str) -> str:
    """`83%`, `40.2G`, `12.0M/s`, `2.41kW`, `850µs`."""
    if unit in {"bytes", "bytes/s"}:
        return _bytes(value) + unit.removeprefix("bytes")
    if unit == "µs":
        return _time(value)
    if unit == "W" and value >= 1000:
        return f"{value / 1000:.2f}kW"
    return f"{_short(value)}{unit}"


def _bytes(value: float) -> str:
    step = 0
    while value >= 999.5 and step < len(_SIZES) - 1:
        value /= 1024
        step += 1
    return f"{value:.0f}B" if step == 0 else f"{_short(value)}{_SIZES[step]}"


def _time(value_us: float) -> str:
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if value_us >= size:
            return f"{_short(value_us / size)}{unit}"
    return f"{_short(value_us)}µs"


def _short(value: float) -> str:
    """Three digits that count."""
    if value == int(value) and value < 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
