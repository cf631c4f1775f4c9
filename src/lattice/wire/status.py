"""How an error of the tree crosses the wire: one JSON body for HTTP, one status for gRPC."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import grpc
from grpc import aio

from lattice.base.errors import BY_CODE, LatticeError, RateLimited, Unavailable, status_of
from lattice.wire.dial_reasons import dial_reason

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
"""Of every HTTP response, so that no browser caches, frames or runs one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    """What happened, what to do, and the id of the request in the server's log."""

    code: str
    message: str
    hint: str | None
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """The body of every HTTP response that is not a success."""

    error: ErrorDetail


def http_error(error: LatticeError, request_id: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of the response."""
    detail = ErrorDetail(
        code=error.code, message=error.message, hint=error.hint, request_id=request_id
    )
    headers: dict[str, str] = {}
    status = status_of(error).http
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="lattice"'
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return status, asdict(ErrorBody(error=detail)), headers


def grpc_status(error: LatticeError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Code, details and trailing metadata of the response."""
    code: grpc.StatusCode = getattr(grpc.StatusCode, status_of(error).grpc)
    trailers: list[tuple[str, str]] = [("lattice-code", error.code)]
    if error.hint:
        # Metadata is ASCII; the hint is for people and may have typography.
        trailers.append(("lattice-hint", error.hint.encode("ascii", "replace").decode()))
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        trailers.append(("retry-after", str(error.retry_after_s)))
    return code, error.message, tuple(trailers)


def error_of(who: str, error: aio.AioRpcError) -> LatticeError:
    """The inverse of `grpc_status`. `Unavailable` if the other part sent no error of ours."""
    pairs: Any = error.trailing_metadata() or ()
    trailers: dict[str, Any] = dict(pairs)
    code, hint = trailers.get("lattice-code"), trailers.get("lattice-hint")
    kind = BY_CODE.get(code) if isinstance(code, str) else None
    if kind is None:
        reason = dial_reason(error.details() or error.code().name)
        return Unavailable(f"{who}: {reason.text}", hint=reason.hint or None)
    return kind(error.details() or "", hint=hint if isinstance(hint, str) else None)
