"""The replicas of one server: which is next, what one call tried, and why it failed. No I/O.

Both clients use it. `Replicas` lasts as long as the client and puts the one that answered last
first. `Tries` lasts for one call. It decides whether another replica may be tried, and reports what
happened if none answered.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Generic, TypeVar

from lattice.base.call import IDEMPOTENCY_KEY, KEY_OPTIONAL, REPEATED, Call
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.base.fast_start.connector import Unreached, reason
from lattice.client.answers import SWITCH_REPLICA, unreachable

T = TypeVar("T")

_UNSURE_HINT = "See whether it was done, as with `lattice status`, before you repeat it."


class Replicas:
    """Their addresses, in the order in which they are tried."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        if not urls:
            raise ConfigurationError(
                "No server is known: the configuration has `local: true`.",
                hint="Name one with LATTICE_API_URL.",
            )
        self.urls = tuple(dict.fromkeys(urls))

    @property
    def several(self) -> bool:
        """True if there is more than one."""
        return len(self.urls) > 1

    def answered(self, url: str) -> None:
        """Try it first from now on."""
        if url != self.urls[0]:
            self.urls = (url, *(each for each in self.urls if each != url))

    def failed(self, url: str) -> None:
        """Try it last from now on."""
        if url != self.urls[-1]:
            self.urls = (*(each for each in self.urls if each != url), url)

    def prepared(self, call: Call[T]) -> Call[T]:
        """The call with a new key, if that lets another replica repeat it."""
        if not self.several or not call.takes_key or call.key:
            return call
        keyed = call.with_header(IDEMPOTENCY_KEY, os.urandom(16).hex())
        return keyed.with_header(KEY_OPTIONAL, "true")


class Tries(Generic[T]):
    """The tries of one call. `left` are the replicas that may still be tried."""

    def __init__(self, replicas: Replicas, call: Call[T]) -> None:
        self._replicas = replicas
        self._call = call
        self._failures: dict[str, str] = {}
        self._once_more = not replicas.several
        """A single server is tried again after it broke the connection."""
        self.left = replicas.urls
        self.unsure = False
        """True once a try may have reached a server that gave no answer."""

    def unreached(self, reasons: Mapping[str, str]) -> None:
        """No connection could be made to these, so nothing was sent."""
        for url, why in reasons.items():
            self._drop(url, why)

    def broken(self, url: str, why: str) -> None:
        """It was sent to this one without a response. Raises if it must not be sent again."""
        self._drop(url, why)
        self.unsure = True
        if not self._call.repeatable:
            raise Unavailable(
                f"Whether it was done is not known: {url} was lost before it answered "
                f"({why.rstrip('.')}).",
                hint=_UNSURE_HINT,
            )
        if self._once_more:
            self._once_more, self.left = False, (url,)

    def settles(self, url: str, status: int) -> bool:
        """True if this response is final; otherwise another replica is tried."""
        if status in SWITCH_REPLICA and self._call.repeatable:
            if self._once_more:
                self._once_more, self.unsure = False, True
                return False
            if any(each != url for each in self.left):
                self._drop(url, f"answered {status}")
                self.unsure = True
                return False
        self._replicas.answered(url)
        return True

    def _drop(self, url: str, why: str) -> None:
        self._failures[url] = why
        self.left = tuple(each for each in self.left if each != url)
        self._replicas.failed(url)

    @property
    def request(self) -> Call[T]:
        """The request to send; a repetition is marked as one."""
        if not self.unsure or self._call.method == "GET":
            return self._call
        return self._call.with_header(REPEATED, "true")

    def error(self) -> Unavailable:
        """The error if no replica is left."""
        return self.explained(unreached_error(self._failures))

    def explained(self, error: Unavailable) -> Unavailable:
        """The error, with advice if the act may have been done."""
        if not self.unsure or self._call.method == "GET":
            return error
        hint = _UNSURE_HINT
        if self._call.takes_key:
            hint = (
                "It may have been done. Repeat it safely with "
                f"`--idempotency-key {self._call.key}`, or see `lattice status`."
            )
        explained = Unavailable(error.message, hint=hint)
        for note in getattr(error, "__notes__", ()):
            explained.add_note(note)
        return explained


def unreached_error(reasons: Mapping[str, str]) -> Unavailable:
    """The error if none of these could be reached."""
    whys = "; ".join(dict.fromkeys(reasons.values()))
    return unreachable(" or ".join(reasons), whys)


class BrokenOff(OSError):
    """A response broke off while it was read."""

    def __init__(self, url: str, failure: OSError) -> None:
        super().__init__(reason(failure))
        self.url = url


def reasons(failure: Unreached) -> dict[str, str]:
    """Why each of them could not be reached."""
    return {url: reason(error) for url, error in failure.failures.items()}


_TRUST = (
    "Name the file with the authority that signed it: `ca:` in the configuration, or LATTICE_CA. "
    "Whoever runs the server has it."
)


def check_certificate(failure: Unreached) -> None:
    """Raise at once for a refused certificate, because such a replica has not died."""
    for url, error in failure.failures.items():
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is refused: {error.verify_message}"
            raise Unavailable(f"Can't reach {url}: {why}", hint=_TRUST) from None
