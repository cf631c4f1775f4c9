"""The async door of the SDK, on httpx2: many calls on kept connections, from one event loop."""

# ruff: noqa: PLC0415 - a verb loads its feature, so that the SDK costs what is used of it

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack
from urllib.parse import urlsplit

import httpx2

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import LoginRequired
from lattice.base.http1 import BODY_LIMIT_BYTES, LOOPBACK, BadReply, Door, tls_context
from lattice.base.pace import pauses
from lattice.client.answers import (
    NOT_LOGGED_IN,
    SWITCH_REPLICA,
    address,
    end_offset,
    read_answer,
    refusal,
    request_headers,
    unreachable,
)
from lattice.client.settings import Settings
from lattice.client.tokens import TokenSource, token_source

if TYPE_CHECKING:
    from lattice.client.attached_async import AsyncRemoteTerminal
    from lattice.client.course import Course
    from lattice.client.dialling import Dialler
    from lattice.client.fetching import AsyncFetch
    from lattice.client.following import AsyncFollowing
    from lattice.features.allocations.model import AllocationCard, AllocationList
    from lattice.features.attach.model import AttachSessions
    from lattice.features.compare.model import Comparison
    from lattice.features.diag.model import Diagnosis, StackPicture
    from lattice.features.identity.model import AuthDiscovery, Identity
    from lattice.features.logs.api import LogChoice
    from lattice.features.logs.model import LogPage, LogRecord, LogStreams
    from lattice.features.nodes.model import NodeActs, NodeCard, NodeList
    from lattice.features.report.model import Report
    from lattice.features.sharing.model import AllocationSharing
    from lattice.features.submit.model import CancelAnswer, SubmitAnswer, SubmitRequest
    from lattice.features.telemetry.model import Telemetry
    from lattice.features.top.model import TopAnswer
    from lattice.features.watch.api import WatchChoice
    from lattice.features.watch.model import WatchRecord

T = TypeVar("T")

_ERROR_LIMIT_BYTES = 64 * 1024


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

    def attach(
        self,
        reference: str,
        *,
        node: str = "",
        rank: int | None = None,
        command: Sequence[str] = (),
        terminal: str = "",
        rows: int = 24,
        columns: int = 80,
        tools: str = "",
    ) -> AsyncRemoteTerminal:
        """Run a command in a running job, or its owner's login shell; used with `async with`.

        With `terminal` (what TERM is to say) it has one of this size, else pipes.
        """
        from lattice.client.attached_async import AsyncRemoteTerminal
        from lattice.client.terminal import TerminalLink
        from lattice.features.attach.api import terminal as api

        call = api.attach(reference, node=node, rank=rank, command=tuple(command), tools=tools)
        clock = SystemClock()
        dialler = self.dialler(call, clock=clock)
        link = TerminalLink(call, dialler, clock, terminal=terminal, size=(rows, columns))
        return AsyncRemoteTerminal(link)

    async def attach_sessions(
        self, reference: str = "", *, only_open: bool = False
    ) -> AttachSessions:
        """The caller's own terminals in jobs, newest first."""
        from lattice.features.attach.api import calls

        return await self.call(calls.list_sessions(reference=reference, only_open=only_open))

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

    async def metrics(
        self,
        reference: str,
        *,
        mode: str = "summary",
        duration_s: int | None = None,
        attempt: int = 0,
        history: bool = False,
    ) -> TopAnswer:
        """What a job uses now; with a duration, and of one that is over, means and peaks.

        `mode` is `summary`, `per_node`, `per_gpu` or `wide`. With `history` every figure brings
        its past along.
        """
        from lattice.features.top import api

        return await self.call(
            api.query_metrics(
                reference, mode=mode, duration_s=duration_s, attempt=attempt, history=history
            )
        )

    async def diagnose(self, reference: str, *, areas: Sequence[str] = ()) -> Diagnosis:
        """What is sick about a running job; of `network`, `storage` and so on, or of everything."""
        from lattice.features.diag import api

        return await self.call(api.diagnose(reference, areas=areas))

    async def stacks(self, reference: str) -> StackPicture:
        """Where every rank of one's own running job stands."""
        from lattice.features.diag import api

        return await self.call(api.take_stacks(reference))

    async def report(self, reference: str, *, attempt: int = 0) -> Report:
        """What an attempt asked for and used, and advice; 0 is the newest that has started."""
        from lattice.features.report import api

        return await self.call(api.get_report(reference, attempt=attempt))

    async def compare(self, *references: str, metrics: Sequence[str] = ()) -> Comparison:
        """What differs between runs, each against the first, and how sure that is."""
        from lattice.features.compare import api

        return await self.call(api.compare_metrics(references, metrics=metrics))

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

    async def share(self, reference: str, user: str, *, duration_s: int = 0) -> AllocationSharing:
        """Let a user read what one of the caller's own wrote, for a while."""
        from lattice.features.sharing import api

        return await self.call(api.share_allocation(reference, user, duration_s))

    async def unshare(self, reference: str, user: str) -> AllocationSharing:
        """End that now."""
        from lattice.features.sharing import api

        return await self.call(api.unshare_allocation(reference, user))

    async def shares(self, reference: str) -> AllocationSharing:
        """With whom one of the caller's own is shared, and who else has read it."""
        from lattice.features.sharing import api

        return await self.call(api.list_shares(reference))

    async def telemetry(self, reference: str) -> Telemetry:
        """How closely one is measured, and until when."""
        from lattice.features.telemetry import api

        return await self.call(api.get_telemetry(reference))

    async def set_telemetry(self, reference: str, mode: str, *, duration_s: int = 0) -> Telemetry:
        """Measure one of the caller's own as `prod`, `debug` or `audit` from now on."""
        from lattice.features.telemetry import api

        return await self.call(api.set_telemetry(reference, mode, duration_s))

    async def read_logs(
        self,
        reference: str,
        *,
        limit: int = 0,
        cursor: str = "",
        offset: int | None = None,
        **choice: Unpack[LogChoice],
    ) -> LogPage:
        """One page of what an allocation wrote, in the order of time."""
        from lattice.features.logs import api

        return await self.call(
            api.read_logs(reference, limit=limit, cursor=cursor, offset=offset, **choice)
        )

    def logs(
        self,
        reference: str,
        *,
        follow: bool = False,
        cursor: str = "",
        signs_of_life: bool = False,
        **choice: Unpack[LogChoice],
    ) -> AsyncFollowing[LogRecord]:
        """What an allocation wrote, record by record; with `follow` until it ends.

        Lost connections are made anew, and no line comes twice or not at all.
        """
        from lattice.features.logs import api

        return self.stream(
            api.stream_logs(
                reference, follow=follow, cursor=cursor, signs_of_life=signs_of_life, **choice
            )
        )

    def watch(
        self,
        reference: str,
        *,
        cursor: str = "",
        signs_of_life: bool = False,
        **choice: Unpack[WatchChoice],
    ) -> AsyncFollowing[WatchRecord]:
        """What a job's nodes measure and judge, record by record, until it ends.

        Lost connections are made anew, and no alert is told twice.
        """
        from lattice.features.watch import api

        return self.stream(
            api.watch(reference, cursor=cursor, signs_of_life=signs_of_life, **choice)
        )

    async def log_streams(self, reference: str, *, attempt: int = 0) -> LogStreams:
        """Which streams an attempt has, and how long each is."""
        from lattice.features.logs import api

        return await self.call(api.list_streams(reference, attempt=attempt))

    def log_bytes(
        self,
        reference: str,
        *,
        node: str,
        stream: str = "stdout",
        source: str = "batch",
        attempt: int = 0,
        offset: int = 0,
    ) -> AsyncFetch:
        """The very bytes of one stream, from an offset."""
        from lattice.features.logs import api

        return self.fetch(
            api.raw_logs(
                reference, node=node, stream=stream, source=source, attempt=attempt, offset=offset
            )
        )

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
