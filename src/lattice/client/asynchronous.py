"""The async door of the SDK, on httpx2: many calls on kept connections, from one event loop."""

# ruff: noqa: PLC0415 - what only some verbs need is loaded by them

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

import httpx2

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.clock import Clock
from lattice.base.errors import LoginRequired, RateLimited
from lattice.base.http1 import BODY_LIMIT_BYTES, LOOPBACK, BadReply, Door, tls_context
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
from lattice.client.verbs_async import AsyncVerbs

if TYPE_CHECKING:
    from lattice.client.course import Course
    from lattice.client.dialling import Dialler
    from lattice.client.fetching import AsyncFetch
    from lattice.client.following import AsyncFollowing

T = TypeVar("T")

_ERROR_LIMIT_BYTES = 64 * 1024


class Client(AsyncVerbs):
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
        self._settings = settings
        self._environment = environment
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

    async def call(
        self,
        call: Call[T],
        *,
        anonymous: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> T:
        """Make a call, and those that complete its answer. `anonymous` sends no token."""
        answer = await self._patient(call, anonymous, sleep)
        while call.parts and (rest := call.parts.rest(call, answer)) is not None:
            answer = call.parts.joined(answer, await self._patient(rest, anonymous, sleep))
        return answer

    async def _patient(
        self, call: Call[T], anonymous: bool, sleep: Callable[[float], Awaitable[None]]
    ) -> T:
        waited_s = 0.0
        while True:
            try:
                return await self._once(call, anonymous)
            except RateLimited as refused:
                pause_s = wait_of(call, refused, waited_s)
            await sleep(pause_s)
            waited_s += pause_s

    async def _once(self, call: Call[T], anonymous: bool) -> T:
        token = None if anonymous else await self._token()
        url, reply = await self._send(call, token)
        if reply.status_code == 401 and token is not None:
            # In a thread: a renewal waits for files and for the provider.
            fresh = await asyncio.to_thread(self._tokens.renewed, token)
            if fresh is not None:
                token = fresh
                url, reply = await self._send(call, token)
        return read_answer(call, url, reply.status_code, _lowered(reply), reply.content, token)

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
                self._switch()
                continue
            if reply.status_code not in SWITCH_REPLICA or number == len(tries):
                return url, reply
        raise unreachable(tries[-1], str(failure) or type(failure).__name__) from None

    def stream(
        self,
        call: StreamCall[T],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncFollowing[T]:
        """Follow a stream over as many connections as it takes."""
        from lattice.client.course import Course
        from lattice.client.following import AsyncFollowing

        course = Course(call, replicas=len(self._urls))
        return AsyncFollowing(course, self._follow(course, sleep))

    async def _follow(
        self, course: Course[T], sleep: Callable[[float], Awaitable[None]]
    ) -> AsyncGenerator[T, None]:
        renewed: str | None = None
        while True:
            if course.pause_s:
                await sleep(course.pause_s)
            token, url = await self._token(), self.url
            try:
                async with aclosing(self._one_connection(course, url, token)) as records:
                    async for record in records:
                        yield record
            except (httpx2.HTTPError, OSError) as failure:
                self._switch()
                for record in course.lost(str(failure) or type(failure).__name__, url):
                    yield record
                continue
            if course.error is None:
                return
            if isinstance(course.error, LoginRequired) and token not in {None, renewed}:
                renewed = await asyncio.to_thread(self._tokens.renewed, token or "")
                if renewed is not None:
                    continue
            self._switch()
            for record in course.refused(course.error):
                yield record

    async def _one_connection(
        self, course: Course[T], url: str, token: str | None
    ) -> AsyncGenerator[T, None]:
        async with self._open(course.request, url, token, "text/event-stream") as reply:
            if reply.status_code != 200:
                body = await _short(reply)
                course.error = refusal(url, reply.status_code, _lowered(reply), body, token)
                return
            course.opened()
            async for piece in reply.aiter_bytes():
                for record in course.feed(piece, url):
                    yield record
                if course.ended or course.error is not None:
                    return
        raise BadReply("the stream broke off")

    def fetch(
        self, call: BytesCall, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AsyncFetch:
        """Bytes of one thing, over as many connections as it takes."""
        from lattice.client.fetching import AsyncFetch

        return AsyncFetch(call, self._pieces, sleep=sleep)

    async def _pieces(self, call: BytesCall) -> AsyncIterator[tuple[int | None, bytes]]:
        token = await self._token()
        try:
            async with self._open(call, self.url, token, "application/octet-stream") as reply:
                headers = _lowered(reply)
                if reply.status_code == 200:
                    end = end_offset(headers)
                    yield end, b""
                    async for piece in reply.aiter_bytes():
                        yield end, piece
                    return
                error = refusal(self.url, reply.status_code, headers, await _short(reply), token)
        except (httpx2.HTTPError, OSError) as failure:
            self._switch()
            raise OSError(str(failure) or type(failure).__name__) from failure
        if not isinstance(error, LoginRequired) or token is None:
            raise error
        if await asyncio.to_thread(self._tokens.renewed, token) is None:
            raise error
        async for pair in self._pieces(call):
            yield pair

    def dialler(self, call: TerminalCall, *, clock: Clock) -> Dialler:
        """What opens the connections of a terminal."""
        from lattice.client.dialling import Dialler

        settings = self._settings
        context = tls_context(settings.ca, settings.client_cert, settings.client_key)
        door = Door(context=context, environment=self._environment, timeout_s=self._timeout_s)
        return Dialler(
            call.path,
            urls=self._urls,
            door=lambda: door,
            tokens=self._tokens,
            monotonic=clock.monotonic,
        )

    def _switch(self) -> None:
        """Another replica's turn."""
        self._urls = (*self._urls[1:], self._urls[0])

    def _open(
        self, call: StreamCall[T] | BytesCall, url: str, token: str | None, accept: str
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        return self._http.stream(
            "GET",
            address(url, call),
            headers=request_headers(token, accept=accept) | {"Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(self._timeout_s, connect=3.0, read=call.silence_s),
        )

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


def _lowered(reply: httpx2.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in reply.headers.items()}


async def _short(reply: httpx2.Response) -> bytes:
    """The body of an error, as much of it as one may have."""
    body = b""
    async for piece in reply.aiter_bytes():
        body += piece
        if len(body) > _ERROR_LIMIT_BYTES:
            break
    return body


def _kept(reply: httpx2.Response) -> dict[str, str]:
    return {
        name: value
        for name, value in reply.headers.items()
        if name.lower() in {"retry-after", "x-request-id"}
    }
