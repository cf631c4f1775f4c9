"""Conditions that alerts and diagnoses share. Pure.

Each function takes plain values and thresholds. The caller adds its own history and its own texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from lattice.domain.alert import Progress
from lattice.observe.thresholds import Thresholds

_PROGRAM_XIDS = frozenset({"13", "31", "43", "45"})


def is_gpu_low(percent: float, thresholds: Thresholds) -> bool:
    """Return whether a GPU does next to nothing now."""
    return percent < thresholds.gpu_idle_percent


def is_gpu_idle(percent: float, low_s: float, thresholds: Thresholds) -> bool:
    """Return whether a GPU is idle. `low_s` is the time for which it was low."""
    return is_gpu_low(percent, thresholds) and low_s > thresholds.gpu_idle_s


@dataclass(frozen=True, slots=True)
class HangLimit:
    """When a busy GPU counts as hung."""

    watts: float
    """It draws less than this."""
    after_s: float
    """It does so, without progress, for this time."""


def hang_limit(
    watts: float, limit_watts: float, most_watts: float, thresholds: Thresholds
) -> HangLimit:
    """Return the limit for a GPU with this power limit. `most_watts` is its maximum in the job."""
    of_limit = thresholds.gpu_hang_limit_ratio * limit_watts
    of_past = thresholds.gpu_hang_past_ratio * most_watts
    if watts < of_past:
        return HangLimit(min(of_limit, of_past), thresholds.gpu_hang_s)
    return HangLimit(of_limit, thresholds.gpu_hang_without_past_s)


def seems_busy(percent: float, thresholds: Thresholds) -> bool:
    """Return whether a GPU seems fully used."""
    return percent >= thresholds.gpu_hang_percent


def is_gpu_spinning(percent: float, watts: float, limit: HangLimit, thresholds: Thresholds) -> bool:
    """Return whether a GPU seems fully used and draws next to no power."""
    return seems_busy(percent, thresholds) and watts < limit.watts


def is_gpu_hung(still_s: float, samples: int, limit: HangLimit, thresholds: Thresholds) -> bool:
    """Return whether a spinning GPU hangs. `still_s` is the time without progress."""
    return samples >= thresholds.gpu_hang_samples and still_s >= limit.after_s


def last_progress(progress: Progress) -> float | None:
    """Return when the job last made progress. A rank that only waits uses its processor too."""
    moved = [each for each in (progress.output, progress.storage, progress.network) if each]
    return max(moved, default=None)


class ThrottleCause(StrEnum):
    """Why a GPU is slowed down."""

    HEAT = "heat"
    BRAKE = "brake"
    """The hardware protects itself."""
    SHORTAGE = "shortage"
    """It is capped although it draws less than its power limit."""
    LIMIT = "limit"
    """It is at its own power limit, as a working GPU is; or its power is unknown."""

    @property
    def is_fault(self) -> bool:
        """True if it never happens to a healthy GPU."""
        return self in {ThrottleCause.HEAT, ThrottleCause.BRAKE}


def throttle_causes(
    reasons: Iterable[str],
    watts: float | None,
    limit_watts: float | None,
    thresholds: Thresholds,
) -> dict[str, ThrottleCause]:
    """Return the cause behind each reason. Reasons that slow no job down are left out."""
    found = {}
    is_short = bool(
        limit_watts and watts is not None and watts < thresholds.gpu_cap_ratio * limit_watts
    )
    for each in reasons:
        if "thermal" in each:
            found[each] = ThrottleCause.HEAT
        elif "slowdown" in each or "brake" in each:
            found[each] = ThrottleCause.BRAKE
        elif "power" in each:
            found[each] = ThrottleCause.SHORTAGE if is_short else ThrottleCause.LIMIT
    return found


def is_program_xid(xid: str) -> bool:
    """Return whether a program causes this error of the driver, and not the GPU."""
    return xid in _PROGRAM_XIDS


def oom_kills(counts: Iterable[float]) -> float:
    """Return how many processes of the job the kernel killed, of the counts of its cgroups."""
    return sum(counts)


def packet_error_percent(errors: float, packets: float, thresholds: Thresholds) -> float | None:
    """Return the share of packets lost to errors, or None if they are too few for a share."""
    if not errors:
        return 0.0
    return None if packets < thresholds.network_least_packets else 100.0 * errors / packets


def is_network_lossy(error_percent: float, thresholds: Thresholds) -> bool:
    """Return whether a network loses too many packets to errors."""
    return error_percent > thresholds.network_error_percent


def is_p99_known(operations: float, thresholds: Thresholds) -> bool:
    """Return whether there were enough reads and writes for a p99."""
    return operations >= thresholds.io_least_operations


def is_io_slow(p99_s: float, operations: float, limit_s: float, thresholds: Thresholds) -> bool:
    """Return whether reads and writes take longer than the limit."""
    return is_p99_known(operations, thresholds) and p99_s > limit_s
