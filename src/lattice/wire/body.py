"""The body of a request that changes something: bounded while it is read, then strictly decoded.

FastAPI would read a whole body before any guard runs; so a route that takes one reads it here,
after the caller is known, and never more of it than the route allows.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect

from lattice.base.errors import PermissionRefused, UsageError

T = TypeVar("T")

LARGEST_BYTES = 64 * 1024

# What a browser says of a request that another site's page made it send.
_FOREIGN = frozenset({"cross-site", "same-site"})


def refuse_foreign_page(request: Request) -> None:
    """Return unless a page of another site sends this: it would act in its visitor's name."""
    if request.headers.get("sec-fetch-site", "").lower() in _FOREIGN:
        raise PermissionRefused(
            "A page of another site may not do this.", hint="Call the server directly."
        )


async def read_body(request: Request, kind: type[T], largest_bytes: int) -> T:
    """The JSON document as the dataclass; every name known, every value of its type."""
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content != "application/json":
        raise UsageError("The body is not said to be JSON.", hint="Send application/json.")
    raw = await _bytes(request, largest_bytes)
    try:
        document = msgspec.json.decode(raw)
        value = msgspec.convert(document, kind, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"The body is not valid: {error}.") from None
    unknown = sorted(set(document) - {each.name for each in fields(kind)})  # type: ignore[arg-type]
    if unknown:
        raise UsageError(f"The body has a name that is not known: {unknown[0][:60]!r}.")
    return value


async def _bytes(request: Request, largest_bytes: int) -> bytes:
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > largest_bytes:
                raise UsageError(f"The body is larger than {largest_bytes} bytes.")
            pieces.append(piece)
    except ClientDisconnect:
        # No defect: the client left, or was too slow.
        raise UsageError("The body did not arrive whole.", hint="Send it again.") from None
    return b"".join(pieces)


def described_body(kind: type) -> dict[str, Any]:
    """What the description says of such a body."""
    schema = TypeAdapter(kind).json_schema()
    schema["additionalProperties"] = False
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
