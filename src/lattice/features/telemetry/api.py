"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

import json
from urllib.parse import quote

from lattice.base.call import Call
from lattice.base.errors import UsageError
from lattice.domain.allocation import REFERENCE_HINT, BadReference, parse_reference
from lattice.features.telemetry.model import Telemetry


def get_telemetry(reference: str) -> Call[Telemetry]:
    """How closely it is measured."""
    return Call("GET", _path(reference), Telemetry)


def set_telemetry(reference: str, mode: str, duration_s: int = 0) -> Call[Telemetry]:
    """Measure it that closely from now on; 0: half an hour for debug, else without end."""
    body = json.dumps({"mode": mode, "duration_s": duration_s}).encode()
    return Call("PUT", _path(reference), Telemetry, body=body, idempotent=True)


def _path(reference: str) -> str:
    try:
        name = str(parse_reference(reference))
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
    return f"/v1/allocations/{quote(name, safe='')}/telemetry"
