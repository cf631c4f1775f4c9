"""The headings of table columns. Pure."""

from __future__ import annotations

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
    """Return the heading of a narrow column."""
    return _TITLES.get(metric, metric.upper())
