"""The blocking door of the SDK, on the standard library's sockets: what the command line uses."""

# ruff: noqa: PLC0415 - what only some verbs need is loaded by them

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.clock import Clock
from lattice.base.errors import LoginRequired, RateLimited
from lattice.base.http1 import LOOPBACK, BadReply, Door, Reply, StreamedReply, tls_context
from lattice.client.answers import (
    NOT_LOGGED_IN,
    SWITCH_REPLICA,
    address,
    end_offset,
    read_answer,
    refusal,
    request_headers,
    unreachable,
    wait_of,
)
from lattice.client.settings import Settings
from lattice.client.tokens import TokenSource, token_source
from lattice.client.verbs import Verbs

if TYPE_CHECKING:
    from lattice.client.course import Course
    from lattice.client.dialling import Dialler
    from lattice.client.fetching import Fetch
    from lattice.client.following import Following

T = TypeVar("T")


class SyncClient(Verbs):
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

    def call(
        self,
        call: Call[T],
        *,
        anonymous: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> T:
        """Make a call, and those that complete its answer. `anonymous` sends no token."""
        answer = self._patient(call, anonymous, sleep)
        while call.parts and (rest := call.parts.rest(call, answer)) is not None:
            answer = call.parts.joined(answer, self._patient(rest, anonymous, sleep))
        return answer

    def _patient(self, call: Call[T], anonymous: bool, sleep: Callable[[float], None]) -> T:
        waited_s = 0.0
        while True:
            try:
                return self._once(call, anonymous)
            except RateLimited as refused:
                pause_s = wait_of(call, refused, waited_s)
            sleep(pause_s)
            waited_s += pause_s

    def _once(self, call: Call[T], anonymous: bool) -> T:
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
            except OSError as error:
                failure = error
                self._switch(error, url)
                continue
            if reply.status not in SWITCH_REPLICA or number == len(tries):
                return url, reply
        assert failure is not None
        raise unreachable(tries[-1], _reason(failure)) from None

    def stream(
        self, call: StreamCall[T], *, sleep: Callable[[float], None] = time.sleep
    ) -> Following[T]:
        """Follow a stream over as many connections as it takes."""
        from lattice.client.course import Course
        from lattice.client.following import Following

        course = Course(call, replicas=len(self._urls))
        return Following(course, self._follow(course, sleep))

    def _follow(
        self, course: Course[T], sleep: Callable[[float], None]
    ) -> Generator[T, None, None]:
        renewed: str | None = None
        while True:
            if course.pause_s:
                sleep(course.pause_s)
            token, url = self._token(), self.url
            try:
                yield from self._one_connection(course, url, token)
            except OSError as failure:
                self._switch(failure, url)
                yield from course.lost(_reason(failure), url)
                continue
            if course.error is None:
                return
            if isinstance(course.error, LoginRequired) and token not in {None, renewed}:
                renewed = self._tokens.renewed(token or "")
                if renewed is not None:
                    continue
            self._switch()
            yield from course.refused(course.error)

    def _one_connection(self, course: Course[T], url: str, token: str | None) -> Iterator[T]:
        with self._open(course.request, url, token, "text/event-stream") as reply:
            if reply.status != 200:
                course.error = refusal(url, reply.status, reply.headers, reply.body(), token)
                return
            course.opened()
            for piece in reply.pieces():
                yield from course.feed(piece, url)
                if course.ended or course.error is not None:
                    return
        raise BadReply("the stream broke off")

    def fetch(self, call: BytesCall, *, sleep: Callable[[float], None] = time.sleep) -> Fetch:
        """Bytes of one thing, over as many connections as it takes."""
        from lattice.client.fetching import Fetch

        return Fetch(call, self._pieces, sleep=sleep)

    def _pieces(self, call: BytesCall) -> Iterator[tuple[int | None, bytes]]:
        token = self._token()
        try:
            with self._open(call, self.url, token, "application/octet-stream") as reply:
                if reply.status == 200:
                    end = end_offset(reply.headers)
                    yield end, b""
                    for piece in reply.pieces():
                        yield end, piece
                    return
                error = refusal(self.url, reply.status, reply.headers, reply.body(), token)
        except OSError as failure:
            self._switch(failure, self.url)
            raise
        if not isinstance(error, LoginRequired) or token is None:
            raise error
        if self._tokens.renewed(token) is None:
            raise error
        yield from self._pieces(call)

    def dialler(self, call: TerminalCall, *, clock: Clock) -> Dialler:
        """What opens the connections of a terminal."""
        from lattice.client.dialling import Dialler

        return Dialler(
            call.path,
            urls=self._urls,
            door=self._the_door,
            tokens=self._tokens,
            monotonic=clock.monotonic,
        )

    def _switch(self, failure: OSError | None = None, url: str = "") -> None:
        """Another replica's turn."""
        if isinstance(failure, ssl.SSLCertVerificationError):
            raise unreachable(
                url, f"its certificate is refused: {failure.verify_message}"
            ) from None
        self._urls = (*self._urls[1:], self._urls[0])

    def _open(
        self, call: StreamCall[T] | BytesCall, url: str, token: str | None, accept: str
    ) -> StreamedReply:
        return self._the_door().stream(
            address(url, call), request_headers(token, accept=accept), silence_s=call.silence_s
        )

    def _the_door(self) -> Door:
        if self._door is None:
            settings = self._settings
            context = None
            if any(each.startswith("https:") for each in self._urls):
                context = tls_context(settings.ca, settings.client_cert, settings.client_key)
            self._door = Door(
                context=context, environment=self._environment, timeout_s=self._timeout_s
            )
        return self._door

    def _exchange(self, call: Call[T], url: str, token: str | None) -> Reply:
        return self._the_door().exchange(
            call.method,
            address(url, call),
            request_headers(token, call),
            call.body or b"",
            timeout_s=call.timeout_s,
        )


def _reason(failure: OSError) -> str:
    return failure.strerror or str(failure) or "no answer"
