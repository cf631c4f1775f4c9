"""Requests and responses of both clients of the SDK: headers, JSON, errors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import quote_plus

import lattice
from lattice.base.call import BytesCall, Call, StreamCall
from lattice.base.errors import (
    BY_CODE,
    InternalError,
    LatticeError,
    LoginRequired,
    RateLimited,
    Unavailable,
)

T = TypeVar("T")

NOT_LOGGED_IN = "Not logged in. Run `lattice login` first."
SWITCH_REPLICA = frozenset({502, 504})
"""Sent by a proxy about the replica behind it: another replica may well answer."""
_SHORTEST_WAIT_S = 0.2


def address(base: str, call: Call[T] | StreamCall[T] | BytesCall) -> str:
    """The full URL of a call."""
    if not call.params:
        return base + call.path
    query = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in call.params)
    return f"{base}{call.path}?{query}"


def request_headers(
    token: str | None, call: Call[T] | None = None, *, accept: str = ""
) -> dict[str, str]:
    """Headers with the client's version, the token, and the request id for both logs."""
    headers = dict(call.headers) if call is not None else {}
    if accept:
        headers["Accept"] = accept
    if call is not None and call.body is not None:
        headers["Content-Type"] = "application/json"
    headers |= {"User-Agent": f"lattice/{lattice.__version__}", "X-Request-Id": os.urandom(8).hex()}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def end_offset(headers: Mapping[str, str]) -> int | None:
    """The end of the fetched bytes, as far as the server has it."""
    text = headers.get("lattice-end-offset", "")
    return int(text) if text.isascii() and text.isdigit() else None


def unreachable(url: str, reason: str) -> Unavailable:
    """The error if no server could be reached."""
    return Unavailable(
        f"Can't reach {url}: {reason}", hint="Check the address and the network, then try again."
    )


def read_answer(
    call: Call[T], url: str, status: int, headers: Mapping[str, str], body: bytes, token: str | None
) -> T:
    """The answer as its dataclass, or raise the error of the response."""
    if status != 200:
        raise refusal(url, status, headers, body, token)
    # Imported here, because `lattice attach` decodes no answer before its prompt.
    from lattice.base.fast_start.decode import BadAnswer, decode  # noqa: PLC0415

    try:
        return decode(body, call.answer)
    except BadAnswer as error:
        raise InternalError(
            f"{url} answered something this version can't read: {error}",
            hint="Client and server may be of different versions; compare `lattice --version`.",
        ) from None


def _error_fields(body: bytes) -> dict[str, str]:
    """The texts of the server's error body; none of them if a proxy answered instead."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    error = document.get("error") if isinstance(document, dict) else None
    fields = error if isinstance(error, dict) else {}
    return {name: value for name, value in fields.items() if isinstance(value, str) and value}


def refusal(
    url: str, status: int, headers: Mapping[str, str], body: bytes, token: str | None
) -> LatticeError:
    """The error of a response."""
    fields = _error_fields(body)
    error = _kind(url, status, fields, headers, token)
    request_id = fields.get("request_id") or headers.get("x-request-id")
    if request_id:
        error.add_note(f"request {request_id}")
    return error


def _kind(
    url: str, status: int, fields: Mapping[str, str], headers: Mapping[str, str], token: str | None
) -> LatticeError:
    if status == 401 and token is None:
        return LoginRequired(NOT_LOGGED_IN)
    code, message, hint = fields.get("code"), fields.get("message"), fields.get("hint")
    if code is None or message is None:
        hint = "Check that the address is a Lattice server's."
        if 300 <= status < 400:
            hint = "It sends callers elsewhere, which is not followed. " + hint
        return Unavailable(f"{url} answered {status} and not as Lattice does", hint=hint)
    kind = BY_CODE.get(code, InternalError)
    if kind is RateLimited:
        after = headers.get("retry-after", "")
        seconds = int(after) if after.isascii() and after.isdigit() else None
        wait = f"Try again in {seconds} s." if seconds is not None else None
        return RateLimited(message, hint=hint or wait, retry_after_s=seconds)
    return kind(message, hint=hint)


def wait_of(call: Call[T], refused: RateLimited, waited_s: float) -> float:
    """How long to wait before a retry; raises the refusal if a retry is of no use."""
    after_s = refused.retry_after_s
    if after_s is None or waited_s + after_s > call.patience_s:
        raise refused
    return max(float(after_s), _SHORTEST_WAIT_S)
