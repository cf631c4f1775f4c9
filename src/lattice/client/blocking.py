"""The blocking door of the SDK, on the standard library's sockets: what the command line uses."""

# ruff: noqa: PLC0415 - a verb loads its feature, so that the SDK costs what is used of it

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

from lattice.base.call import Call
from lattice.base.errors import LoginRequired
from lattice.base.http1 import LOOPBACK, Door, Reply, tls_context
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


class SyncClient:
    """Calls to one server, which may have several replicas.

    A GET whose replica can't be reached is asked once more, of the next one. Feature modules load
    with the first verb that needs them.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        tokens: TokenSource | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._urls = settings.urls
        self._settings = settings
        self._environment = os.environ if environment is None else environment
        self._timeout_s = timeout_s
        self._tokens = tokens or token_source(settings, environment=self._environment)
        self._door: Door | None = None

    @classmethod
    def from_environment(cls) -> SyncClient:
        """As the command line would: configuration file, environment, stored sign-in."""
        return cls(Settings.load())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is kept open; the form is the same as the async door's."""

    @property
    def url(self) -> str:
        """The replica that is asked first."""
        return self._urls[0]

    def call(self, call: Call[T], *, anonymous: bool = False) -> T:
        """Make a call. `anonymous` sends no token."""
        token = None if anonymous else self._token()
        url, reply = self._send(call, token)
        if reply.status == 401 and token is not None:
            fresh = self._tokens.renewed(token)
            if fresh is not None:
                token = fresh
                url, reply = self._send(call, token)
        return read_answer(call, url, reply.status, reply.headers, reply.body, token)

    def _token(self) -> str | None:
        token = self._tokens.token()
        # Only a server on loopback may run without identities, so only there is it worth asking.
        if token is None and urlsplit(self.url).hostname not in LOOPBACK:
            raise LoginRequired(NOT_LOGGED_IN)
        return token

    def _send(self, call: Call[T], token: str | None) -> tuple[str, Reply]:
        tries = self._urls[:2] if len(self._urls) > 1 else self._urls * 2
        tries = tries if call.repeatable else tries[:1]
        failure: OSError | None = None
        for number, url in enumerate(tries, 1):
            try:
                reply = self._exchange(call, url, token)
            except ssl.SSLCertVerificationError as error:
                raise unreachable(
                    url, f"its certificate is refused: {error.verify_message}"
                ) from None
            except OSError as error:
                failure = error
                self._urls = (*self._urls[1:], self._urls[0])
                continue
            if reply.status not in SWITCH_REPLICA or number == len(tries):
                return url, reply
        assert failure is not None
        raise unreachable(tries[-1], failure.strerror or str(failure) or "no answer") from None

    def _exchange(self, call: Call[T], url: str, token: str | None) -> Reply:
        if self._door is None:
            settings = self._settings
            context = None
            if any(each.startswith("https:") for each in self._urls):
                context = tls_context(settings.ca, settings.client_cert, settings.client_key)
            self._door = Door(
                context=context, environment=self._environment, timeout_s=self._timeout_s
            )
        return self._door.exchange(
            call.method,
            address(url, call),
            request_headers(token, call),
            call.body or b"",
            timeout_s=call.timeout_s,
        )

    def allocations(
        self,
        *,
        states: tuple[str, ...] = (),
        user: str = "",
        everyone: bool = False,
        limit: int = 0,
    ) -> AllocationList:
        """The unfinished ones and those of the last day."""
        from lattice.features.allocations import api

        return self.call(
            api.list_allocations(states=states, user=user, everyone=everyone, limit=limit)
        )

    def allocation(self, reference: str) -> AllocationCard:
        """One, by any of its names."""
        from lattice.features.allocations import api

        return self.call(api.get_allocation(reference))

    def history(
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

        return self.call(
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

    def wait(
        self,
        reference: str,
        *,
        timeout_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> AllocationCard:
        """Ask until the allocation has finished or the time is over; the last card either way."""
        from lattice.base.pace import pauses

        card = self.allocation(reference)
        for pause_s in pauses(timeout_s):
            if card.allocation.state.finished:
                break
            sleep(pause_s)
            # By its full name from here on: the id alone could come to mean a newer one.
            card = self.allocation(card.allocation.ref)
        return card

    def submit(self, request: SubmitRequest, *, idempotency_key: str = "") -> SubmitAnswer:
        """Submit a script; with a key at most once, however often it is asked."""
        from lattice.features.submit import api

        return self.call(api.submit_allocation(request, idempotency_key=idempotency_key))

    def cancel(self, reference: str) -> CancelAnswer:
        """Have one cancelled, by its id."""
        from lattice.features.submit import api

        return self.call(api.cancel_allocation(reference))

    def nodes(self, *, states: tuple[str, ...] = (), partition: str = "") -> NodeList:
        """All nodes, or those of a state or a partition."""
        from lattice.features.nodes import api

        return self.call(api.list_nodes(states=states, partition=partition))

    def node(self, name: str) -> NodeCard:
        """One node."""
        from lattice.features.nodes import api

        return self.call(api.get_node(name))

    def operate_nodes(self, act: str, nodes: str, *, reason: str = "") -> NodeActs:
        """`drain`, `undrain`, `disable` or `enable` nodes, named as Slurm does: `n[1-3]`."""
        from lattice.domain.operation import NodeAct
        from lattice.features.nodes import api

        return self.call(api.operate_node(NodeAct(act), nodes, reason))

    def whoami(self) -> Identity:
        """Who the server takes the caller for."""
        from lattice.features.identity import api

        return self.call(api.whoami())

    def discovery(self) -> AuthDiscovery:
        """Where and as which client to sign in; needs no token."""
        from lattice.features.identity import api

        return self.call(api.auth_discovery(), anonymous=True)
