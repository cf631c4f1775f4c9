"""The async client of the SDK, on httpx2: many calls on kept connections, from one event loop."""

# ruff: noqa: PLC0415 - loaded only by the verbs that need it

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Self, TypeVar

import httpx2

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.clock import Clock
from lattice.base.errors import LoginRequired, RateLimited, Unavailable
from lattice.base.fast_start.connector import STAGGER_S, BadReply
from lattice.base.fast_start.http1 import (
    BODY_LIMIT_BYTES,
    CONNECT_S,
    HttpTarget,
    Reply,
    tls_context,
)
from lattice.client.answers import (
    address,
    end_offset,
    read_answer,
    refusal,
    request_headers,
    wait_of,
)
from lattice.client.blocking_client import SyncClient
from lattice.client.race import BrokenAnswer, NoConnection, Trace, Unanswered, first_connected, why
from lattice.client.replicas import Replicas, Tries
from lattice.client.settings import Settings
from lattice.client.tokens import FixedToken, TokenSource, token_source, usable_token
from lattice.client.verbs_async import AsyncVerbs

if TYPE_CHECKING:
    from lattice.client.byte_stream import AsyncByteStream
    from lattice.client.dialler import Dialler
    from lattice.client.record_stream import AsyncRecordStream, StreamReconnect

T = TypeVar("T")

_ERROR_LIMIT_BYTES = 64 * 1024


class Client(AsyncVerbs):
    """Calls to one server, which may have several replicas; used as `async with`.

    A replica that can't be reached is skipped. A request without a response is sent again to the
    next one, if that is safe.
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
        self._replicas = Replicas(settings.urls)
        # A caller's own transport reports no steps, so no connection is raced against it.
        self._stagger_s = STAGGER_S if transport is None else None
        self._settings = settings
        self._environment = environment
        self._timeout_s = timeout_s
        if tokens is None:
            caller = SyncClient(settings, tokens=FixedToken(None), environment=environment)
            tokens = token_source(settings, caller, environment=environment)
        self._tokens = tokens
        self._http = httpx2.AsyncClient(
            # A caller's own transport encrypts by itself; the system's authorities take 10 ms.
            verify=transport is None
            and tls_context(settings.ca, settings.client_cert, settings.client_key, whole=True),
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S),
            follow_redirects=False,
            transport=transport,
        )

    @classmethod
    def from_environment(cls) -> Client:
        """As the CLI does: configuration file, environment, stored sign-in."""
        return cls(Settings.load())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self._http.aclose()

    @property
    def url(self) -> str:
        """The replica that is tried first."""
        return self._replicas.urls[0]

    async def call(
        self, call: Call[T], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> T:
        """Make a call, and those that complete its answer."""
        answer = await self._patient(call, sleep)
        while call.parts and (rest := call.parts.rest(call, answer)) is not None:
            answer = call.parts.joined(answer, await self._patient(rest, sleep))
        return answer

    async def _patient(self, call: Call[T], sleep: Callable[[float], Awaitable[None]]) -> T:
        waited_s = 0.0
        while True:
            try:
                return await self._once(call)
            except RateLimited as refused:
                pause_s = wait_of(call, refused, waited_s)
            await sleep(pause_s)
            waited_s += pause_s

    async def _once(self, call: Call[T]) -> T:
        call = self._replicas.prepared(call)
        token = None if call.anonymous else await self._token()
        tries, url, reply = await self._send(call, token)
        if reply.status == 401 and token is not None:
            # In a thread, because a renewal waits for files and for the provider.
            fresh = await asyncio.to_thread(self._tokens.renewed, token)
            if fresh is not None:
                token = fresh
                tries, url, reply = await self._send(call, token)
        try:
            return read_answer(call, url, reply.status, reply.headers, reply.body, token)
        except Unavailable as error:
            raise tries.explained(error) from None

    async def _token(self) -> str | None:
        return await asyncio.to_thread(usable_token, self._tokens, self._replicas.urls)

    async def _send(self, call: Call[T], token: str | None) -> tuple[Tries[T], str, Reply]:
        tries = Tries(self._replicas, call)
        while tries.left:
            try:
                url, reply = await self._exchange(tries.request, tries.left, token)
            except NoConnection as error:
                tries.unreached(error.reasons)
                break
            except BrokenAnswer as error:
                tries.broken(error.url, error.why)
                continue
            if tries.settles(url, reply.status):
                return tries, url, reply
        raise tries.error() from None

    def stream(
        self, call: StreamCall[T], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AsyncRecordStream[T]:
        """Follow a stream over as many connections as it takes."""
        from lattice.client.record_stream import AsyncRecordStream, StreamReconnect

        course = StreamReconnect(call, replicas=len(self._replicas.urls))
        return AsyncRecordStream(course, self._follow(course, sleep))

    async def _follow(
        self, course: StreamReconnect[T], sleep: Callable[[float], Awaitable[None]]
    ) -> AsyncGenerator[T, None]:
        renewed: str | None = None
        while True:
            if course.pause_s:
                await sleep(course.pause_s)
            token = await self._token()
            try:
                async with aclosing(self._one_connection(course, token)) as records:
                    async for record in records:
                        yield record
            except Unanswered as failure:
                for record in course.lost(failure.why, failure.url):
                    yield record
                continue
            if course.error is None:
                return
            if isinstance(course.error, LoginRequired) and token not in {None, renewed}:
                renewed = await asyncio.to_thread(self._tokens.renewed, token or "")
                if renewed is not None:
                    continue
            self._replicas.failed(self.url)
            for record in course.refused(course.error):
                yield record

    async def _one_connection(
        self, course: StreamReconnect[T], token: str | None
    ) -> AsyncGenerator[T, None]:
        async with self._open(course.request, token, course.request.accept) as (url, reply):
            if reply.status_code != 200:
                body = await _short(reply)
                course.error = refusal(url, reply.status_code, _lowered(reply), body, token)
                return
            course.opened(reply.headers.get("content-type", ""))
            async for piece in reply.aiter_bytes():
                for record in course.feed(piece, url):
                    yield record
                if course.ended or course.error is not None:
                    return
            raise BadReply("the stream broke off")

    def fetch(
        self, call: BytesCall, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AsyncByteStream:
        """The bytes of one thing, over as many connections as it takes."""
        from lattice.client.byte_stream import AsyncByteStream

        return AsyncByteStream(call, self._pieces, sleep=sleep)

    async def _pieces(self, call: BytesCall) -> AsyncIterator[tuple[int | None, bytes]]:
        token = await self._token()
        try:
            async with self._open(call, token, "application/octet-stream") as (url, reply):
                headers = _lowered(reply)
                if reply.status_code == 200:
                    end = end_offset(headers)
                    yield end, b""
                    async for piece in reply.aiter_bytes():
                        yield end, piece
                    return
                error = refusal(url, reply.status_code, headers, await _short(reply), token)
        except Unanswered as failure:
            raise OSError(failure.why) from failure
        if not isinstance(error, LoginRequired) or token is None:
            raise error
        if await asyncio.to_thread(self._tokens.renewed, token) is None:
            raise error
        async for pair in self._pieces(call):
            yield pair

    def dialler(self, call: TerminalCall, *, clock: Clock) -> Dialler:
        """Opens the connections of a terminal."""
        from lattice.client.dialler import Dialler

        settings = self._settings
        context = tls_context(settings.ca, settings.client_cert, settings.client_key)
        target = HttpTarget(
            context=context, environment=self._environment, timeout_s=self._timeout_s
        )
        return Dialler(
            call.path,
            replicas=self._replicas,
            target=lambda: target,
            tokens=self._tokens,
            monotonic=clock.monotonic,
        )

    @asynccontextmanager
    async def _open(
        self, call: StreamCall[T] | BytesCall, token: str | None, accept: str
    ) -> AsyncGenerator[tuple[str, httpx2.Response], None]:
        """A response that is read as it comes, and the replica that sends it."""
        headers = request_headers(token, accept=accept) | {"Accept-Encoding": "identity"}
        timeout = httpx2.Timeout(self._timeout_s, connect=CONNECT_S, read=call.silence_s)

        def request(url: str, trace: Trace) -> httpx2.Request:
            return self._http.build_request(
                "GET",
                address(url, call),
                headers=headers,
                timeout=timeout,
                extensions={"trace": trace},
            )

        try:
            url, reply = await self._first(self._replicas.urls, request)
        except BrokenAnswer as failure:
            self._replicas.failed(failure.url)
            raise
        self._replicas.answered(url)
        try:
            yield url, reply
        except (httpx2.HTTPError, OSError) as failure:
            self._replicas.failed(url)
            raise BrokenAnswer(url, why(failure)) from failure
        finally:
            await reply.aclose()

    async def _exchange(
        self, call: Call[T], urls: tuple[str, ...], token: str | None
    ) -> tuple[str, Reply]:
        headers = request_headers(token, call)
        timeout = httpx2.Timeout(call.timeout_s or self._timeout_s, connect=CONNECT_S)

        def request(url: str, trace: Trace) -> httpx2.Request:
            return self._http.build_request(
                call.method,
                address(url, call),
                headers=headers,
                content=call.body,
                timeout=timeout,
                extensions={"trace": trace},
            )

        url, reply = await self._first(urls, request)
        size, pieces = 0, []
        try:
            async for piece in reply.aiter_bytes():
                size += len(piece)
                if size > BODY_LIMIT_BYTES:
                    raise httpx2.TransportError("the answer is too large")
                pieces.append(piece)
        except (httpx2.HTTPError, OSError) as failure:
            raise BrokenAnswer(url, why(failure)) from failure
        finally:
            await reply.aclose()
        return url, Reply(reply.status_code, _lowered(reply), b"".join(pieces))

    async def _first(
        self, urls: tuple[str, ...], request: Callable[[str, Trace], httpx2.Request]
    ) -> tuple[str, httpx2.Response]:
        async def send(url: str, trace: Trace) -> httpx2.Response:
            return await self._http.send(request(url, trace), stream=True)

        return await first_connected(urls, send, stagger_s=self._stagger_s)


def _lowered(reply: httpx2.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in reply.headers.items()}


async def _short(reply: httpx2.Response) -> bytes:
    """The body of an error, up to a limit."""
    body = b""
    async for piece in reply.aiter_bytes():
        body += piece
        if len(body) > _ERROR_LIMIT_BYTES:
            break
    return body
