"""The feature's verb as a call to the server. No I/O here; the SDK makes the call."""

from __future__ import annotations

from urllib.parse import quote

from lattice.base.call import Call, params
from lattice.base.errors import UsageError
from lattice.domain.allocation import REFERENCE_HINT, BadReference, parse_reference
from lattice.features.report.model import Report

_PATIENCE_S = 60.0
"""The metric store goes through a whole run."""


def get_report(reference: str, *, attempt: int = 0) -> Call[Report]:
    """What an attempt asked for and used; 0 is the newest that has started."""
    try:
        name = str(parse_reference(reference))
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
    return Call(
        "GET",
        f"/v1/allocations/{quote(name, safe='')}/report",
        Report,
        params(attempt=attempt or None),
        timeout_s=_PATIENCE_S,
    )
