"""Thresholds that separate good values from bad ones. Pure.

Alerts on the nodes and diagnoses on the server read the same ones. A site changes them in `alerts`
of its agents and in `diag` of its servers.
"""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Every threshold with its default. A percentage is of 100, a ratio of 1."""

    gpu_idle_percent: float = 10.0
    """A GPU is idle below this utilization."""
    gpu_idle_s: float = 60.0
    """An idle GPU is reported after more than this time."""
    loader_gpu_percent: float = 50.0
    """A GPU may wait for its input below this utilization."""

    gpu_hang_percent: float = 95.0
    """A GPU seems busy from this utilization on."""
    gpu_hang_limit_ratio: float = 0.4
    """A busy GPU is near idle below this part of its power limit."""
    gpu_hang_past_ratio: float = 0.6
    """A GPU drew more before if it now draws less than this part of its maximum in the job."""
    gpu_hang_s: float = 60.0
    """A busy GPU near idle power that drew more before hangs after this time."""
    gpu_hang_without_past_s: float = 600.0
    """The same for a GPU that never drew more: only time separates a hang from light work."""
    gpu_hang_samples: int = 3
    """A hang needs at least this many samples."""

    gpu_cap_ratio: float = 0.85
    """A capped GPU lacks power if it draws less than this part of its power limit."""
    power_throttle_s: float = 60.0
    """A GPU at its power limit is reported after this time; for a moment it is normal."""
    gpu_memory_percent: float = 95.0
    """The memory of a GPU is nearly full above this share."""

    memory_percent: float = 90.0
    """The memory of a job is near its limit from this share on."""
    event_clear_s: float = 600.0
    """An OOM kill, an XID or an ECC error has passed after this time without another."""

    network_error_percent: float = 0.1
    """A network loses too many packets to errors above this share."""
    network_least_packets: float = 1000.0
    """Fewer packets make no share."""
    retransmit_percent: float = 1.0
    """TCP sends too many segments again above this share."""
    congestion_percent: float = 10.0
    """A network is congested above this share of time or packets."""

    io_alert_p99_s: float = 0.010
    """Reads and writes are slow enough for an alert above this p99."""
    io_fault_p99_s: float = 1.0
    """They are slow enough for a finding above this p99: a healthy `fsync` takes over 10 ms."""
    io_least_operations: float = 20.0
    """Fewer reads and writes make no p99."""
    io_jump_ratio: float = 5.0
    """A p99 jumps if it is this many times the median of its own past."""
    io_jump_least_s: float = 0.001
    """A p99 below this never jumps."""
    mount_answers_s: float = 1.0
    """A file system is slow if it takes longer to answer."""

    hang_s: float = 120.0
    """A job hangs if no sign of progress moved for this time."""
    quiet_s: float = 300.0
    """A job that works is quiet if it wrote nothing for this time."""
    straggler_percent: float = 25.0
    """A straggler differs from the others by at least this share."""
    clock_s: float = 1.0
    """A clock is wrong if it differs by more."""

    progress_cpu_percent: float = 5.0
    """A job makes progress if it uses this share of one core."""
    progress_storage_bytes_s: float = 64 * _KIB
    """A job makes progress if it reads and writes this much."""
    progress_network_bytes_s: float = 64 * _KIB
    """A job makes progress if its own traffic is this much."""
