"""The blocking client of the SDK, on the standard library's sockets; the CLI uses it."""

# ruff: noqa: PLC0415 - loaded only by the verbs that need it

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.clock import Clock
from lattice.base.errors import LoginRequired, RateLimited, Unavailable
from lattice.base.fast_start.connector import BadReply, Unreached, reason
from lattice.base.fast_start.http1 import Connection, HttpTarget, Reply, StreamedReply, tls_context
from lattice.client.answers import (
    address,
    end_offset,
    read_answer,
    refusal,
    request_headers,
    wait_of,
)
from lattice.client.replicas import BrokenOff, Replicas, Tries, check_certificate, reasons
from lattice.client.settings import Settings
from lattice.client.tokens import TokenSource, token_source, usable_token
from lattice.client.verbs import Verbs

if TYPE_CHECKING:
    from lattice.client.byte_stream import ByteStream
    from lattice.client.dialler import Dialler
    from lattice.client.record_stream import RecordStream, StreamReconnect

T = TypeVar("T")


class SyncClient(Verbs):
    """Calls to one server, which may have several replicas.

    A replica that can't be reached is skipped. A request without a response is sent again to the
    next one, if that is safe. Feature modules load with the first verb that needs them.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        tokens: TokenSource | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`warn` gets a line if the sign-in is about to end."""
        self._replicas = Replicas(settings.urls)
        self._settings = settings
        self._environment = os.environ if environment is None else environment
        self._timeout_s = timeout_s
        self._tokens = tokens or token_source(
            settings, self, environment=self._environment, warn=warn
        )
        self._target: HttpTarget | None = None

    @classmethod
    def from_environment(cls) -> SyncClient:
        """As the CLI does: configuration file, environment, stored sign-in."""
        return cls(Settings.load())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept open; it exists for the same form as the async client."""

    @property
    def url(self) -> str:
        """The replica that is tried first."""
        return self._replicas.urls[0]

    def call(self, call: Call[T], *, sleep: Callable[[float], None] = time.sleep) -> T:
        """Make a call, and those that complete its answer."""
        answer = self._patient(call, sleep)
        while call.parts and (rest := call.parts.rest(call, answer)) is not None:
            answer = call.parts.joined(answer, self._patient(rest, sleep))
        return answer

    def _patient(self, call: Call[T], sleep: Callable[[float], None]) -> T:
        waited_s = 0.0
        while True:
            try:
                return self._once(call)
            except RateLimited as refused:
                pause_s = wait_of(call, refused, waited_s)
            sleep(pause_s)
            waited_s += pause_s

    def _once(self, call: Call[T]) -> T:
        call = self._replicas.prepared(call)
        token = None if call.anonymous else usable_token(self._tokens, self._replicas.urls)
        tries, url, reply = self._send(call, token)
        if reply.status == 401 and token is not None:
            fresh = self._tokens.renewed(token)
            if fresh is not None:
                token = fresh
                tries, url, reply = self._send(call, token)
        try:
            return read_answer(call, url, reply.status, reply.headers, reply.body, token)
        except Unavailable as error:
            raise tries.explained(error) from None

    def _send(self, call: Call[T], token: str | None) -> tuple[Tries[T], str, Reply]:
        tries = Tries(self._replicas, call)
        while tries.left:
            try:
                connection = self._connect(tries.left, call.timeout_s)
            except Unreached as error:
                tries.unreached(reasons(error))
                break
            request, url = tries.request, connection.url
            try:
                reply = connection.exchange(
                    request.method,
                    address(url, request),
                    request_headers(token, request),
                    request.body or b"",
                )
            except OSError as error:
                tries.broken(url, reason(error))
                continue
            if tries.settles(url, reply.status):
                return tries, url, reply
        raise tries.error() from None

    def stream(
        self, call: StreamCall[T], *, sleep: Callable[[float], None] = time.sleep
    ) -> RecordStream[T]:
        """Follow a stream over as many connections as it takes."""
        from lattice.client.record_stream import RecordStream, StreamReconnect

        course = StreamReconnect(call, replicas=len(self._replicas.urls))
        return RecordStream(course, self._follow(course, sleep))

    def _follow(
        self, course: StreamReconnect[T], sleep: Callable[[float], None]
    ) -> Generator[T, None, None]:
        renewed: str | None = None
        while True:
            if course.pause_s:
                sleep(course.pause_s)
            token = usable_token(self._tokens, self._replicas.urls)
            try:
                yield from self._one_connection(course, token)
            except Unreached as failure:
                why = reasons(failure)
                yield from course.lost("; ".join(dict.fromkeys(why.values())), " or ".join(why))
                continue
            except BrokenOff as failure:
                yield from course.lost(reason(failure), failure.url)
                continue
            if course.error is None:
                return
            if isinstance(course.error, LoginRequired) and token not in {None, renewed}:
                renewed = self._tokens.renewed(token or "")
                if renewed is not None:
                    continue
            self._replicas.failed(self.url)
            yield from course.refused(course.error)

    def _one_connection(self, course: StreamReconnect[T], token: str | None) -> Iterator[T]:
        with self._open(course.request, token, course.request.accept) as (url, reply):
            if reply.status != 200:
                course.error = refusal(url, reply.status, reply.headers, reply.body(), token)
                return
            course.opened(reply.headers.get("content-type", ""))
            for piece in reply.pieces():
                yield from course.feed(piece, url)
                if course.ended or course.error is not None:
                    return
            raise BadReply("the stream broke off")

    def fetch(self, call: BytesCall, *, sleep: Callable[[float], None] = time.sleep) -> ByteStream:
        """The bytes of one thing, over as many connections as it takes."""
        from lattice.client.byte_stream import ByteStream

        return ByteStream(call, self._pieces, sleep=sleep)

    def _pieces(self, call: BytesCall) -> Iterator[tuple[int | None, bytes]]:
        token = usable_token(self._tokens, self._replicas.urls)
        with self._open(call, token, "application/octet-stream") as (url, reply):
            if reply.status == 200:
                end = end_offset(reply.headers)
                yield end, b""
                for piece in reply.pieces():
                    yield end, piece
                return
            error = refusal(url, reply.status, reply.headers, reply.body(), token)
        if not isinstance(error, LoginRequired) or token is None:
            raise error
        if self._tokens.renewed(token) is None:
            raise error
        yield from self._pieces(call)

    def dialler(self, call: TerminalCall, *, clock: Clock) -> Dialler:
        """Opens the connections of a terminal."""
        from lattice.client.dialler import Dialler

        return Dialler(
            call.path,
            replicas=self._replicas,
            target=self._http_target,
            tokens=self._tokens,
            monotonic=clock.monotonic,
        )

    @contextmanager
    def _open(
        self, call: StreamCall[T] | BytesCall, token: str | None, accept: str
    ) -> Iterator[tuple[str, StreamedReply]]:
        """A response that is read as it comes, and the replica that sends it."""
        connection = self._connect(self._replicas.urls)
        url = connection.url
        headers = request_headers(token, accept=accept)
        try:
            with connection.stream(address(url, call), headers, silence_s=call.silence_s) as reply:
                self._replicas.answered(url)
                yield url, reply
        except OSError as failure:
            self._replicas.failed(url)
            raise BrokenOff(url, failure) from failure

    def _connect(self, urls: Sequence[str], timeout_s: float | None = None) -> Connection:
        """Raises `Unreached`, or `Unavailable` at once for a refused certificate."""
        try:
            return self._http_target().connect(urls, timeout_s=timeout_s)
        except Unreached as failure:
            check_certificate(failure)
            for url in failure.failures:
                self._replicas.failed(url)
            raise

    def _http_target(self) -> HttpTarget:
        if self._target is None:
            settings = self._settings
            context = None
            if any(each.startswith("https:") for each in settings.urls):
                context = tls_context(settings.ca, settings.client_cert, settings.client_key)
            self._target = HttpTarget(
                context=context, environment=self._environment, timeout_s=self._timeout_s
            )
        return self._target
