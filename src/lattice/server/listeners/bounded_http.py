"""HTTP/1.1 with bounds: a deadline for heads, a minimum speed for bodies, strict framing.

Uvicorn's own protocol waits for ever for the rest of a head or a body after the first byte. h11
accepts a request that gives its length twice. This module closes both gaps:

- `StrictConnection` is h11's parser, which refuses heads and bodies that are out of bounds.
- `BoundedHttp` is uvicorn's protocol, with timeouts while it waits for the client.

A connection that became a WebSocket is not timed here: its protocol has its own pings. The number
of connections is limited in `lattice.server.listeners.connections`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import h11
from h11._writers import ChunkedWriter
from uvicorn.protocols.http.h11_impl import H11Protocol

from lattice.base.errors import UsageError
from lattice.wire.status import SECURITY_HEADERS, http_error

LARGEST_HEAD_BYTES = 32 * 1024
MOST_HEADERS = 100
LARGEST_BODY_BYTES = 4 * 1024 * 1024
_LINGER_S = 1.0
_TLS_END_S = 0.1
_HINT = "Send the request anew, whole, over a new connection."


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """How long a client may take, and how much it may send."""

    head_s: float = 10.0
    """From `accept` to the end of the first head, or from the first byte of a later one."""
    body_window_s: float = 5.0
    """The grace of a body, and how often its speed is checked after that."""
    body_floor_bytes_s: float = 8 * 1024
    largest_head_bytes: int = LARGEST_HEAD_BYTES
    most_headers: int = MOST_HEADERS
    largest_body_bytes: int = LARGEST_BODY_BYTES


class OutOfBounds(h11.RemoteProtocolError):
    """A request that is refused for its form; the connection ends with it."""


class StrictConnection(h11.Connection):
    """Parses requests, and raises `OutOfBounds` for one that is refused."""

    def __init__(self, bounds: HttpBounds) -> None:
        super().__init__(h11.SERVER, bounds.largest_head_bytes)
        self._bounds = bounds
        self._body_bytes = 0
        self.received_bytes = 0
        """Bytes of bodies, over all requests of the connection; framing does not count."""
        self.fault: h11.RemoteProtocolError | None = None
        """Why reading ended."""

    def next_event(self) -> Any:
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._body_bytes = 0
                self._check_head(event)
            elif isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                self.received_bytes += len(event.data)
                self._check_body(self._body_bytes)
        except h11.RemoteProtocolError as fault:
            self.fault = fault
            raise
        return event

    def send(self, event: Any) -> Any:
        """Like h11. A part of a chunked body changes no state, so its frame is made at once."""
        if (
            isinstance(event, h11.Data)
            and self.our_state is h11.SEND_BODY
            and isinstance(self._writer, ChunkedWriter)
        ):
            size = len(event.data)
            return b"%x\r\n%b\r\n" % (size, event.data) if size else b""
        return super().send(event)

    def _check_head(self, request: h11.Request) -> None:
        # h11 bounds a head that comes in pieces; one that comes at once is complete before it
        # checks.
        bounds, headers = self._bounds, list(request.headers)
        size = len(request.target) + sum(len(name) + len(text) for name, text in headers)
        if size > bounds.largest_head_bytes or len(headers) > bounds.most_headers:
            raise OutOfBounds(
                f"The head of the request is too large: {bounds.most_headers} headers and "
                f"{bounds.largest_head_bytes} bytes are taken.",
                error_status_hint=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            )
        lengths = [text for name, text in headers if name == b"content-length"]
        encoded = any(name == b"transfer-encoding" for name, _ in headers)
        if encoded and (lengths or request.http_version < b"1.1"):
            # Two parsers of such a request may disagree on its end.
            raise OutOfBounds("Send either Content-Length or Transfer-Encoding, by HTTP/1.1.")
        self._check_body(int(lengths[0]) if lengths else 0)

    def _check_body(self, size_bytes: int) -> None:
        if size_bytes > self._bounds.largest_body_bytes:
            raise OutOfBounds(
                f"The body is larger than {self._bounds.largest_body_bytes} bytes.",
                error_status_hint=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )


class BoundedHttp(H11Protocol):
    """One connection. At most one timer runs: for a head, or for a body."""

    def __init__(self, bounds: HttpBounds, **given: Any) -> None:
        super().__init__(**given)
        self._bounds = bounds
        self.conn = self._strict = StrictConnection(bounds)
        # A protocol is made at `accept`, so the TLS handshake counts.
        self._accepted_s = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._awaits_head = False
        self._judged_bytes = 0
        self._upgraded = False
        self._has_ended = False
        """True if nothing more is read or answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head(self._accepted_s + self._bounds.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to the protocol of the WebSocket."""
        super().handle_websocket_upgrade(event)
        # h11 has not read the end of the request, so it still waits for a body.
        self._upgraded = True

    def send_400_response(self, msg: str) -> None:
        """Refuse what could not be parsed, with the reason and its own status."""
        fault = self._strict.fault
        status = fault.error_status_hint if fault is not None else HTTPStatus.BAD_REQUEST
        self._refuse(status, str(fault) if isinstance(fault, OutOfBounds) else msg)

    def _watch(self) -> None:
        """Wait for what the client has to send now: the rest of a head, of a body, or nothing."""
        state = self.conn.their_state
        if self._upgraded or self._has_ended or self.transport.is_closing():
            self._await_nothing()
        elif state is h11.SEND_BODY:
            if self._timer is None or self._awaits_head:
                self._await_body()
        elif state is not h11.IDLE:
            self._await_nothing()
        elif not self._awaits_head:
            self._await_nothing()
            # Between requests uvicorn's keep-alive timer runs, up to the first byte.
            if self.conn.trailing_data[0]:
                self._await_head(self.loop.time() + self._bounds.head_s)

    def _await_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._awaits_head = None, False

    def _await_head(self, until_s: float) -> None:
        self._await_nothing()
        self._timer = self.loop.call_at(until_s, self._head_is_late)
        self._awaits_head = True

    def _await_body(self) -> None:
        self._await_nothing()
        self._judged_bytes = self._strict.received_bytes
        self._timer = self.loop.call_later(self._bounds.body_window_s, self._judge_body)

    def _head_is_late(self) -> None:
        if not self.conn.trailing_data[0]:
            # There is no request, so there is no response.
            self._close(0)
            return
        text = f"The head of the request did not arrive within {self._bounds.head_s:g} s."
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, text)

    def _judge_body(self) -> None:
        bounds = self._bounds
        received_bytes = self._strict.received_bytes - self._judged_bytes
        if (
            received_bytes >= bounds.body_floor_bytes_s * bounds.body_window_s
            # The server itself makes the client wait.
            or self.flow.read_paused
            or (self.cycle is not None and self.cycle.waiting_for_100_continue)
        ):
            self._await_body()
            return
        text = f"The body comes slower than {bounds.body_floor_bytes_s:g} bytes a second."
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, text)

    def _refuse(self, status: int, message: str) -> None:
        """Respond if nothing was sent yet, and close."""
        if self._has_ended or self.transport.is_closing():
            return
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self._close(0)
            return
        _, body, _ = http_error(UsageError(message, hint=_HINT), uuid4().hex)
        content = json.dumps(body).encode()
        headers = [
            *((name.lower().encode(), text.encode()) for name, text in SECURITY_HEADERS.items()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
            (b"connection", b"close"),
        ]
        reason = HTTPStatus(status).phrase.encode()
        for event in (
            h11.Response(status_code=status, headers=headers, reason=reason),
            h11.Data(data=content),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self._close(_LINGER_S)

    def _close(self, linger_s: float) -> None:
        """End the connection. `linger_s`: how long written data may still be sent."""
        self._await_nothing()
        self._has_ended = True
        if self.cycle is not None and not self.cycle.response_complete:
            # The application learns it before its next write, not after the socket is closed.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if linger_s:
            if self.transport.get_extra_info("sslcontext") is None:
                self.transport.close()
            else:
                # One that closes reads on, as long as the client sends: for its end of TLS.
                self.transport.pause_reading()
                self.loop.call_later(linger_s - _TLS_END_S, self.transport.close)
            self.loop.call_later(linger_s, self.transport.abort)
        else:
            self.transport.abort()
