"""WebSockets behind the same guard as every route: the caller is verified before the upgrade.

A refused caller gets an HTTP response and a closed connection, never an upgrade. A program sends
its token in the header. A browser can't, and sends all its cookies. So a request with an origin
must have exactly a configured one, and needs a ticket, which works once. Cookies and the query are
ignored.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import uuid4

from starlette.types import Receive, Scope, Send

from lattice.base.errors import (
    InternalError,
    LatticeError,
    LoginRequired,
    PermissionRefused,
    UsageError,
)
from lattice.wire.lines import ORDERLY, LineClosed
from lattice.wire.status import SECURITY_HEADERS, http_error

Caller = TypeVar("Caller")

_GOING_AWAY = 1001
_POLICY = 1008


class SocketLine:
    """The server's side of one accepted WebSocket."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._closed = False

    async def receive(self) -> bytes | str:
        message = await self._receive()
        if message["type"] != "websocket.receive":
            self._closed = True
            code = message.get("code", _GOING_AWAY)
            raise LineClosed(f"closed with {code}", orderly=code == ORDERLY)
        frame: bytes | None = message.get("bytes")
        return frame if frame is not None else str(message["text"])

    async def send(self, frame: bytes) -> None:
        await self._out({"type": "websocket.send", "bytes": frame})

    async def send_word(self, word: str) -> None:
        await self._out({"type": "websocket.send", "text": word})

    async def close(self, code: int, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (OSError, RuntimeError):
            return

    async def _out(self, message: dict[str, Any]) -> None:
        if self._closed:
            raise LineClosed("closed")
        try:
            await self._send(message)
        except (OSError, RuntimeError):
            # The connection ended meanwhile; the receiver gets the reason.
            raise LineClosed("the connection is gone") from None


@dataclass(frozen=True, slots=True)
class SocketOffer:
    """The content of the request before the upgrade."""

    origins: tuple[str, ...]
    authorization: str
    protocols: tuple[str, ...]
    path: Mapping[str, str]

    @property
    def from_browser(self) -> bool:
        """True if a page sends it: programs name no origin."""
        return bool(self.origins)

    @classmethod
    def of(cls, scope: Scope) -> SocketOffer:
        named: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            named.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        tokens = named.get("authorization", [])
        return cls(
            tuple(named.get("origin", ())),
            tokens[0] if len(tokens) == 1 else "",
            tuple(scope.get("subprotocols", ())),
            dict(scope.get("path_params", {})),
        )


@dataclass(frozen=True, slots=True)
class SocketRules(Generic[Caller]):
    """What a WebSocket of one route must offer."""

    protocol: str
    ticket_prefix: str
    origins: frozenset[str]
    """The pages that may open it; empty: none."""
    redeem: Callable[[str, Mapping[str, str]], Awaitable[Caller]]
    """The caller of a ticket, once; raises `LoginRequired`."""
    check_path: Callable[[Mapping[str, str]], None] = lambda _: None
    """Raises `NotFound` for an invalid address."""

    def check(self, offer: SocketOffer) -> None:
        """Raise for an address, an origin or a protocol that is not allowed."""
        self.check_path(offer.path)
        if offer.from_browser and (len(offer.origins) != 1 or offer.origins[0] not in self.origins):
            raise PermissionRefused(
                "Pages of this origin may not open a terminal.",
                hint="An administrator names the origin in attach.origins.",
            )
        if self.protocol not in offer.protocols:
            raise UsageError(
                "The WebSocket is of no known protocol.",
                hint=f"Offer the subprotocol {self.protocol}.",
            )

    def ticket(self, offer: SocketOffer) -> str:
        """The one ticket that a browser sends. Raises `LoginRequired`."""
        found = [each for each in offer.protocols if each.startswith(self.ticket_prefix)]
        if len(found) != 1:
            raise LoginRequired("A page needs a ticket.", hint="Ask for one, and use it at once.")
        return found[0].removeprefix(self.ticket_prefix)


class SocketCaller(Generic[Caller]):
    """The caller on the line, and whether it may continue."""

    def __init__(
        self, caller: Caller, authorise: Callable[[str], Awaitable[Caller]], authorization: str
    ) -> None:
        """Without an `authorization` it was a ticket, which can't be checked again."""
        self.caller = caller
        self._authorise = authorise
        self._authorization = authorization

    async def check(self) -> Caller:
        """Authorise again, as at the beginning, and raise as then."""
        if self._authorization:
            self.caller = await self._authorise(self._authorization)
        return self.caller

    async def renew(self, token: str, same: Callable[[Caller, Caller], bool]) -> Caller:
        """Continue with another token of the same caller. Raises as at the beginning."""
        authorization = f"Bearer {token}"
        caller = await self._authorise(authorization)
        if not same(self.caller, caller):
            raise LoginRequired("The token is another's.", hint="Run `lattice login`.")
        self.caller, self._authorization = caller, authorization
        return caller


class SocketEndpoint(Generic[Caller]):
    """An ASGI application for one route: the guard, the upgrade, then the handler."""

    def __init__(
        self,
        rules: SocketRules[Caller],
        authorise: Callable[[str], Awaitable[Caller]],
        handler: Callable[[SocketCaller[Caller], Mapping[str, str], SocketLine], Awaitable[None]],
        on_defect: Callable[[BaseException], None],
    ) -> None:
        self._rules = rules
        self._authorise = authorise
        self._handler = handler
        self._on_defect = on_defect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        offer = SocketOffer.of(scope)
        try:
            standing = await self._admitted(offer)
        except LatticeError as error:
            await _refuse(send, error)
            return
        except Exception as defect:  # noqa: BLE001 - a defect is not disclosed
            self._on_defect(defect)
            await _refuse(send, InternalError("Lattice failed here."))
            return
        await send({"type": "websocket.accept", "subprotocol": self._rules.protocol})
        line = SocketLine(receive, send)
        try:
            await self._handler(standing, offer.path, line)
        except LineClosed:
            pass
        except Exception as defect:  # noqa: BLE001 - the last handler
            self._on_defect(defect)
        finally:
            await line.close(_POLICY, "")

    async def _admitted(self, offer: SocketOffer) -> SocketCaller[Caller]:
        self._rules.check(offer)
        if offer.from_browser:
            caller = await self._rules.redeem(self._rules.ticket(offer), offer.path)
            return SocketCaller(caller, self._authorise, "")
        caller = await self._authorise(offer.authorization)
        return SocketCaller(caller, self._authorise, offer.authorization)


async def _refuse(send: Send, error: LatticeError) -> None:
    status, body, headers = http_error(error, uuid4().hex)
    content = json.dumps(body).encode()
    headers = {**headers, **SECURITY_HEADERS, "Content-Type": "application/json"}
    await send(
        {
            "type": "websocket.http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "websocket.http.response.body", "body": content, "more_body": False})
