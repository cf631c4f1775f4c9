"""Requests and responses of both clients of the SDK: headers, JSON, errors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TypeVar
from urllib.parse import quote_plus, urlsplit

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
from lattice.base.fast_start.connector import LOOPBACK

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
    headers |= {
        "User-Agent": f"lattice/{lattice.__version__}",
        "X-Request-Id": os.urandom(8).hex(),
    }
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def may_be_anonymous(urls: Iterable[str]) -> bool:
    """True if a request without a token makes sense: only a server on loopback may need none."""
    return all(urlsplit(url).hostname in LOOPBACK for url in urls)


def end_offset(headers: Mapping[str, str]) -> int | None:
    """The end of the fetched bytes, as far as the server has it."""
    said = headers.get("lattice-end-offset", "")
    return int(said) if said.isascii() and said.isdigit() else None


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


class _Body:
    """The server's error body; all of it may be missing if a proxy answered instead."""

    __slots__ = ("code", "hint", "message", "request_id")

    def __init__(self, body: bytes) -> None:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        error = document.get("error") if isinstance(document, dict) else None
        fields = error if isinstance(error, dict) else {}
        self.code = _text(fields.get("code"))
        self.message = _text(fields.get("message"))
        self.hint = _text(fields.get("hint"))
        self.request_id = _text(fields.get("request_id"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def refusal(
    url: str, status: int, headers: Mapping[str, str], body: bytes, token: str | None
) -> LatticeError:
    """The error of a response."""
    said = _Body(body)
    error = _kind(url, status, said, headers, token)
    request_id = said.request_id or headers.get("x-request-id")
    if request_id:
        error.add_note(f"request {request_id}")
    return error


def _kind(
    url: str, status: int, said: _Body, headers: Mapping[str, str], token: str | None
) -> LatticeError:
    if status == 401 and token is None:
        return LoginRequired(NOT_LOGGED_IN)
    if said.code is None or said.message is None:
        hint = "Check that the address is a Lattice server's."
        if 300 <= status < 400:
            hint = "It sends callers elsewhere, which is not followed. " + hint
        return Unavailable(f"{url} answered {status} and not as Lattice does", hint=hint)
    kind = BY_CODE.get(said.code, InternalError)
    if kind is RateLimited:
        after = headers.get("retry-after", "")
        seconds = int(after) if after.isascii() and after.isdigit() else None
        wait = f"Try again in {seconds} s." if seconds is not None else None
        return RateLimited(said.message, hint=said.hint or wait, retry_after_s=seconds)
    return kind(said.message, hint=said.hint)


def wait_of(call: Call[T], refused: RateLimited, waited_s: float) -> float:
    """How long to wait before a retry; raises the refusal if a retry is of no use."""
    after_s = refused.retry_after_s
    if after_s is None or waited_s + after_s > call.patience_s:
        raise refused
    return max(float(after_s), _SHORTEST_WAIT_S)
