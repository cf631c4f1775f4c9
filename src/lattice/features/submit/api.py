"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

import json
from dataclasses import fields
from urllib.parse import quote

from lattice.base.call import IDEMPOTENCY_KEY, Call
from lattice.base.errors import UsageError
from lattice.domain.allocation import BadReference, parse_reference
from lattice.domain.sbatch import has_comment
from lattice.features.submit.model import CancelAnswer, SubmitAnswer, SubmitRequest

# Longer than the gate lets a program take, and a call with a key waits for an earlier one.
_PATIENCE_S = 60.0


def submit_allocation(request: SubmitRequest, *, idempotency_key: str = "") -> Call[SubmitAnswer]:
    """Submit a script; with a key at most once.

    The key is kept in the job's comment, so a job with a comment of its own is given none.
    """
    if not (idempotency_key.isascii() and (idempotency_key or "x").isprintable()):
        raise UsageError("The idempotency key is not valid.", hint="Use printable ASCII.")
    told = {each.name: getattr(request, each.name) for each in fields(request)}
    return Call(
        "POST",
        "/v1/allocations",
        SubmitAnswer,
        body=json.dumps({name: value for name, value in told.items() if value}).encode(),
        headers=((IDEMPOTENCY_KEY, idempotency_key),) if idempotency_key else (),
        timeout_s=_PATIENCE_S,
        takes_key=not has_comment(request.options, request.script),
    )


def cancel_allocation(reference: str) -> Call[CancelAnswer]:
    """Cancel one, by its id."""
    try:
        name = str(parse_reference(reference))
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint="Use 12345, 12345_7 or 12345+1.") from None
    return Call(
        "POST",
        f"/v1/allocations/{quote(name, safe='')}/cancel",
        CancelAnswer,
        timeout_s=_PATIENCE_S,
        idempotent=True,
    )
