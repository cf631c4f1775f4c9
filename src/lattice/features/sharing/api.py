"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

import json
from urllib.parse import quote

from lattice.base.call import Call
from lattice.base.errors import UsageError
from lattice.domain.allocation import REFERENCE_HINT, BadReference, parse_reference
from lattice.features.sharing.model import AllocationSharing


def list_shares(reference: str) -> Call[AllocationSharing]:
    """With whom it is shared, and who but the owner has read it."""
    return Call("GET", _path(reference, "shares"), AllocationSharing)


def share_allocation(reference: str, user: str, duration_s: int = 0) -> Call[AllocationSharing]:
    """Let a user read its output for a while; twice is once, a moment later."""
    body = json.dumps({"user": user, "duration_s": duration_s}).encode()
    return Call("POST", _path(reference, "share"), AllocationSharing, body=body, idempotent=True)


def unshare_allocation(reference: str, user: str) -> Call[AllocationSharing]:
    """End that now. A repetition finds nothing to end, and that is no error."""
    body = json.dumps({"user": user}).encode()
    return Call("POST", _path(reference, "unshare"), AllocationSharing, body=body, idempotent=True)


def _path(reference: str, verb: str) -> str:
    try:
        name = str(parse_reference(reference))
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
    return f"/v1/allocations/{quote(name, safe='')}/{verb}"
