"""From where on the rules fire. Pure: what a site sets, with what holds where it sets nothing."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Percentages are of a hundred; times are in seconds unless the name says otherwise."""

    gpu_idle_percent: float = 10.0
    gpu_idle_s: float = 60.0
    """A GPU is idle once it was below for longer than this."""

    gpu_hang_percent: float = 95.0
    gpu_hang_power_of_limit: float = 0.4
    """Near idle is below this share of the power that the card may draw …"""
    gpu_hang_power_of_past: float = 0.6
    """… and below this share of the most that it drew in this job."""
    gpu_hang_s: float = 60.0
    """For so long, over at least three looks."""
    gpu_hang_without_past_s: float = 600.0
    """The same for a card that never drew more in this job: nothing tells a hang from light work
    but time."""

    gpu_memory_percent: float = 95.0

    network_error_percent: float = 0.1
    network_least_packets: float = 1000.0
    """Of fewer packets between two looks no share is told."""

    io_p99_ms: float = 10.0
    io_jump: float = 5.0
    """So many times the median of its own past is a jump …"""
    io_jump_from_ms: float = 1.0
    """… from here on; below, nobody feels it."""
    io_least_operations: float = 20.0
    """Of fewer reads and writes between two looks no p99 is judged."""

    power_throttle_s: float = 60.0
    """A card held at its power limit for a moment is a card at work."""

    event_kept_s: float = 600.0
    """What happened at a moment (OOM kill, XID, ECC) has passed when it has not happened again for
    so long."""

    progress_cpu_percent: float = 5.0
    """A job gets on if it uses this much of one core …"""
    progress_storage_bytes_s: float = 64 * KIB
    """… or reads and writes so much …"""
    progress_network_bytes_s: float = 64 * KIB
    """… or sends and receives so much, where the job's own traffic is told apart."""
