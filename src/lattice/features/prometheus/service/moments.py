"""Times and steps as Prometheus takes them: RFC 3339 or seconds. Pure."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from lattice.base.errors import UsageError

_EARLIEST, _LATEST = 0.0, 1e11
_LONGEST_STEP_S = 366 * 86400.0
_SIZES_S = {
    "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0,
}  # fmt: skip
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:ms|[smhdwy]))+")
_PIECE = re.compile(r"([0-9]+)(ms|[smhdwy])")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?")


def moment_of(text: str, name: str, usual: float) -> float:
    """Seconds since 1970; `usual` where nothing is said. Raises `UsageError`."""
    if not text:
        return usual
    if _NUMBER.fullmatch(text):
        found = float(text)
    else:
        try:
            read = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(f"{name} is no time.", hint="RFC 3339, or seconds.") from None
        found = read.replace(tzinfo=read.tzinfo or UTC).timestamp()
    if not _EARLIEST <= found <= _LATEST:
        raise UsageError(f"{name} is no time at which anything was measured.")
    return found


def step_of(text: str) -> float:
    """Seconds. Raises `UsageError`."""
    if _NUMBER.fullmatch(text):
        found = float(text)
    elif _DURATION.fullmatch(text):
        found = math.fsum(int(size) * _SIZES_S[unit] for size, unit in _PIECE.findall(text))
    else:
        raise UsageError("step is no length of time.", hint="Seconds, or 30s, 1m, 1h30m.")
    if not 0.001 <= found <= _LONGEST_STEP_S:
        raise UsageError("step is too short or too long.")
    return found
