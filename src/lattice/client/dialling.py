"""Opening the WebSocket of a terminal at one of the servers, as every other call reaches them.

It waits, so a loop that must not wait has it done by an errand.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from lattice.base.errors import LatticeError, LoginRequired, Unavailable
from lattice.base.http1 import LOOPBACK, Door
from lattice.base.websocket import Upgrade
from lattice.client.answers import NOT_LOGGED_IN, refusal, request_headers, unreachable
from lattice.client.tokens import TokenSource
from lattice.client.wire import Wire
from lattice.features.attach.api.terminal import LARGEST_MESSAGE_BYTES, PROTOCOL


class Dialler:
    """`dial` opens one at the server whose turn it is; after a failure it is the next one's."""

    def __init__(
        self,
        path: str,
        *,
        urls: tuple[str, ...],
        door: Callable[[], Door],
        tokens: TokenSource,
        monotonic: Callable[[], float],
    ) -> None:
        self._path = path
        self._urls = urls
        self._door = door
        self._tokens = tokens
        self._monotonic = monotonic
        self.token: str | None = None
        """What the newest connection was opened with."""

    @property
    def url(self) -> str:
        """Whose turn it is."""
        return self._urls[0]

    def dial_first(self) -> Wire:
        """Each server once, and a single one twice; raises where all fail, or one says no."""
        tries = max(len(self._urls), 2)
        while True:
            url = self.url
            try:
                return self.dial()
            except OSError as error:
                tries -= 1
                if not tries:
                    raise unreachable(url, reason(error)) from None

    def dial(self) -> Wire:
        """Raises OSError where no server is, LatticeError where it says no."""
        token = self._token()
        try:
            return self._open(token)
        except ssl.SSLCertVerificationError as error:
            raise unreachable(
                self.url, f"its certificate is refused: {error.verify_message}"
            ) from None
        except LoginRequired:
            fresh = self._tokens.renewed(token) if token is not None else None
            if fresh is None:
                raise
            return self._open(fresh)
        except (OSError, Unavailable):
            self.pass_on()
            raise

    def pass_on(self) -> None:
        """Another server's turn."""
        self._urls = (*self._urls[1:], self._urls[0])

    def fresh_token(self, *, refused: bool = False) -> str | None:
        """Another than the one in use, if there is one by now."""
        try:
            known = self.token
            token = self._tokens.renewed(known) if refused and known else self._tokens.token()
        except LatticeError:
            return None  # the server's own warning tells
        return token if token != known else None

    def _token(self) -> str | None:
        token = self._tokens.token()
        if token is None and urlsplit(self.url).hostname not in LOOPBACK:
            raise LoginRequired(NOT_LOGGED_IN)
        return token

    def _open(self, token: str | None) -> Wire:
        upgrade = Upgrade(PROTOCOL)
        headers = request_headers(token) | upgrade.headers()
        reply = self._door().upgrade(self.url + self._path, headers)
        if reply.status != 101:
            with reply:
                raise refusal(self.url, reply.status, reply.headers, reply.body(), token)
        try:
            upgrade.check(reply.headers)
        except BaseException:
            reply.close()
            raise
        connection, held = reply.taken_over()
        self.token = token
        return Wire(
            connection, held, largest_bytes=LARGEST_MESSAGE_BYTES, monotonic=self._monotonic
        )


def reason(failure: OSError) -> str:
    """Why, in words."""
    return failure.strerror or str(failure) or "no answer"


def new_session() -> str:
    """A name for a session that nobody else has or guesses."""
    return os.urandom(16).hex()
