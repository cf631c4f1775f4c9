"""The async door of the SDK, on httpx2: many calls on kept connections, from one event loop."""

# ruff: noqa: PLC0415 - a verb loads its feature, so that the SDK costs what is used of it

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

import httpx2

from lattice.base.call import Call
from lattice.base.errors import LoginRequired
from lattice.base.http1 import BODY_LIMIT_BYTES, LOOPBACK, tls_context
from lattice.base.pace import pauses
from lattice.client.answers import (
    NOT_LOGGED_IN,
    SWITCH_REPLICA,
    address,
    read_answer,
    request_headers,
    unreachable,
)
from lattice.client.settings import Settings
from lattice.client.tokens import TokenSource, token_source

if TYPE_CHECKING:
    from lattice.features.allocations.model import AllocationCard, AllocationList
    from lattice.features.identity.model import AuthDiscovery, Identity
    from lattice.features.nodes.model import NodeActs, NodeCard, NodeList
    from lattice.features.submit.model import CancelAnswer, SubmitAnswer, SubmitRequest

T = TypeVar("T")


class Client:
    """Calls to one server, which may have several replicas; used as `async with`.

    A GET whose replica can't be reached is asked once more, of the next one.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        tokens: TokenSource | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        environment = os.environ if environment is None else environment
        self._urls = settings.urls
        self._timeout_s = timeout_s
        self._tokens = tokens or token_source(settings, environment=environment)
        self._http = httpx2.AsyncClient(
            verify=tls_context(settings.ca, settings.client_cert, settings.client_key),
            timeout=httpx2.Timeout(timeout_s, connect=3.0),
            follow_redirects=False,
            transport=transport,
        )

    @classmethod
    def from_environment(cls) -> Client:
        """As the command line would: configuration file, environment, stored sign-in."""
        return cls(Settings.load())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self._http.aclose()

    @property
    def url(self) -> str:
        """The replica that is asked first."""
        return self._urls[0]

    async def call(self, call: Call[T], *, anonymous: bool = False) -> T:
        """Make a call. `anonymous` sends no token."""
        token = None if anonymous else await self._token()
        url, reply = await self._send(call, token)
        if reply.status_code == 401 and token is not None:
            # In a thread: a renewal waits for files and for the provider.
            fresh = await asyncio.to_thread(self._tokens.renewed, token)
            if fresh is not None:
                token = fresh
                url, reply = await self._send(call, token)
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return read_answer(call, url, reply.status_code, headers, reply.content, token)

    async def _token(self) -> str | None:
        token = await asyncio.to_thread(self._tokens.token)
        # Only a server on loopback may run without identities, so only there is it worth asking.
        if token is None and urlsplit(self.url).hostname not in LOOPBACK:
            raise LoginRequired(NOT_LOGGED_IN)
        return token

    async def _send(self, call: Call[T], token: str | None) -> tuple[str, httpx2.Response]:
        tries = self._urls[:2] if len(self._urls) > 1 else self._urls * 2
        tries = tries if call.repeatable else tries[:1]
        failure: Exception | None = None
        for number, url in enumerate(tries, 1):
            try:
                reply = await self._exchange(call, url, token)
            except (httpx2.HTTPError, OSError) as error:
                failure = error
                self._urls = (*self._urls[1:], self._urls[0])
                continue
            if reply.status_code not in SWITCH_REPLICA or number == len(tries):
                return url, reply
        raise unreachable(tries[-1], str(failure) or type(failure).__name__) from None

    async def _exchange(self, call: Call[T], url: str, token: str | None) -> httpx2.Response:
        request = self._http.build_request(
            call.method,
            address(url, call),
            headers=request_headers(token, call),
            content=call.body,
            timeout=httpx2.Timeout(call.timeout_s or self._timeout_s, connect=3.0),
        )
        reply = await self._http.send(request, stream=True)
        try:
            size, pieces = 0, []
            async for piece in reply.aiter_bytes():
                size += len(piece)
                if size > BODY_LIMIT_BYTES:
                    raise httpx2.TransportError("the answer is too large")
                pieces.append(piece)
        finally:
            await reply.aclose()
        return httpx2.Response(reply.status_code, headers=_kept(reply), content=b"".join(pieces))

    async def allocations(
        self,
        *,
        states: tuple[str, ...] = (),
        user: str = "",
        everyone: bool = False,
        limit: int = 0,
    ) -> AllocationList:
        """The unfinished ones and those of the last day."""
        from lattice.features.allocations import api

        return await self.call(
            api.list_allocations(states=states, user=user, everyone=everyone, limit=limit)
        )

    async def allocation(self, reference: str) -> AllocationCard:
        """One, by any of its names."""
        from lattice.features.allocations import api

        return await self.call(api.get_allocation(reference))

    async def history(
        self,
        *,
        states: tuple[str, ...] = (),
        user: str = "",
        everyone: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 0,
        cursor: str = "",
    ) -> AllocationList:
        """Those of a stretch of time, from the accounting store; a page at a time."""
        from lattice.features.allocations import api

        return await self.call(
            api.list_history(
                states=states,
                user=user,
                everyone=everyone,
                since=since,
                until=until,
                limit=limit,
                cursor=cursor,
            )
        )

    async def wait(
        self,
        reference: str,
        *,
        timeout_s: float | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AllocationCard:
        """Ask until the allocation has finished or the time is over; the last card either way."""
        card = await self.allocation(reference)
        for pause_s in pauses(timeout_s):
            if card.allocation.state.finished:
                break
            await sleep(pause_s)
            # By its full name from here on: the id alone could come to mean a newer one.
            card = await self.allocation(card.allocation.ref)
        return card

    async def submit(self, request: SubmitRequest, *, idempotency_key: str = "") -> SubmitAnswer:
        """Submit a script; with a key at most once, however often it is asked."""
        from lattice.features.submit import api

        return await self.call(api.submit_allocation(request, idempotency_key=idempotency_key))

    async def cancel(self, reference: str) -> CancelAnswer:
        """Have one cancelled, by its id."""
        from lattice.features.submit import api

        return await self.call(api.cancel_allocation(reference))

    async def nodes(self, *, states: tuple[str, ...] = (), partition: str = "") -> NodeList:
        """All nodes, or those of a state or a partition."""
        from lattice.features.nodes import api

        return await self.call(api.list_nodes(states=states, partition=partition))

    async def node(self, name: str) -> NodeCard:
        """One node."""
        from lattice.features.nodes import api

        return await self.call(api.get_node(name))

    async def operate_nodes(self, act: str, nodes: str, *, reason: str = "") -> NodeActs:
        """`drain`, `undrain`, `disable` or `enable` nodes, named as Slurm does: `n[1-3]`."""
        from lattice.domain.operation import NodeAct
        from lattice.features.nodes import api

        return await self.call(api.operate_node(NodeAct(act), nodes, reason))

    async def whoami(self) -> Identity:
        """Who the server takes the caller for."""
        from lattice.features.identity import api

        return await self.call(api.whoami())

    async def discovery(self) -> AuthDiscovery:
        """Where and as which client to sign in; needs no token."""
        from lattice.features.identity import api

        return await self.call(api.auth_discovery(), anonymous=True)


def _kept(reply: httpx2.Response) -> dict[str, str]:
    return {
        name: value
        for name, value in reply.headers.items()
        if name.lower() in {"retry-after", "x-request-id"}
    }
