"""Opens the WebSocket of a terminal at one of the servers, as every other call reaches them.

It blocks, so a loop that must not block runs it as an errand. A person waits for it. So what only
the open connection needs is loaded while the server answers.
"""

# ruff: noqa: PLC0415 - see the module's docstring

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from lattice.base.errors import LatticeError, LoginRequired, Unavailable
from lattice.base.fast_start.connector import Unreached, reason
from lattice.base.fast_start.http1 import Connection, HttpTarget
from lattice.client.answers import refusal, request_headers, unreachable
from lattice.client.replicas import BrokenOff, Replicas, check_certificate, reasons, unreached_error
from lattice.client.tokens import TokenSource, usable_token
from lattice.features.attach.terminal_call import LARGEST_MESSAGE_BYTES, PROTOCOL

if TYPE_CHECKING:
    from lattice.client.wire import Wire

Meanwhile = Callable[[], None]
"""Called while a server prepares its answer."""


class Dialler:
    """`dial` opens one at the next server; after a failure the following one is next."""

    def __init__(
        self,
        path: str,
        *,
        replicas: Replicas,
        target: Callable[[], HttpTarget],
        tokens: TokenSource,
        monotonic: Callable[[], float],
    ) -> None:
        self._path = path
        self._replicas = replicas
        self._target = target
        self._tokens = tokens
        self._monotonic = monotonic
        self.token: str | None = None
        """The token of the newest connection."""

    @property
    def url(self) -> str:
        """The next server."""
        return self._replicas.urls[0]

    def dial_first(self, meanwhile: Meanwhile | None = None) -> Wire:
        """Try each server once, and a single one twice. Raises if all fail, or one refuses."""
        tries = max(len(self._replicas.urls), 2)
        while True:
            try:
                return self.dial(meanwhile)
            except Unreached as error:
                raise unreached_error(reasons(error)) from None
            except BrokenOff as error:
                tries -= 1
                if not tries:
                    raise unreachable(error.url, reason(error)) from None

    def dial(self, meanwhile: Meanwhile | None = None) -> Wire:
        """Open one. Raises `OSError` if no server can be reached, `LatticeError` if one refuses."""
        token = usable_token(self._tokens, self._replicas.urls)
        try:
            return self._open(token, meanwhile)
        except LoginRequired:
            fresh = self._tokens.renewed(token) if token is not None else None
            if fresh is None:
                raise
            return self._open(fresh)
        except Unavailable:
            self.pass_on()
            raise

    def pass_on(self) -> None:
        """Make another server the next one."""
        self._replicas.failed(self.url)

    def fresh_token(self, *, refused: bool = False) -> str | None:
        """A token other than the current one, or None."""
        try:
            known = self.token
            token = self._tokens.renewed(known) if refused and known else self._tokens.token()
        except LatticeError:
            return None  # the server's own warning reports it
        return token if token != known else None

    def _open(self, token: str | None, meanwhile: Meanwhile | None = None) -> Wire:
        connection = self._connect()
        url = connection.url
        try:
            wire = self._upgraded(connection, token, meanwhile)
        except OSError as failure:
            self._replicas.failed(url)
            raise BrokenOff(url, failure) from failure
        self._replicas.answered(url)
        self.token = token
        return wire

    def _connect(self) -> Connection:
        try:
            return self._target().connect(self._replicas.urls, meanwhile=_load_wire)
        except Unreached as failure:
            check_certificate(failure)
            raise

    def _upgraded(
        self, connection: Connection, token: str | None, meanwhile: Meanwhile | None
    ) -> Wire:
        from lattice.base.fast_start.websocket import Upgrade
        from lattice.client.wire import Wire

        upgrade = Upgrade(PROTOCOL)
        url = connection.url
        headers = request_headers(token) | upgrade.headers()
        reply = connection.upgrade(url + self._path, headers, meanwhile=meanwhile)
        if reply.status != 101:
            with reply:
                self._replicas.answered(url)
                raise refusal(url, reply.status, reply.headers, reply.body(), token)
        try:
            upgrade.check(reply.headers)
        except BaseException:
            reply.close()
            raise
        raw, held = reply.taken_over()
        return Wire(raw, held, largest_bytes=LARGEST_MESSAGE_BYTES, monotonic=self._monotonic)


def _load_wire() -> None:
    import lattice.client.wire  # noqa: F401 - used by the connection


def new_session() -> str:
    """A session name that is unique and can't be guessed."""
    return os.urandom(16).hex()
