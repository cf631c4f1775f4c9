"""The blocking door of the SDK, on the standard library's sockets: what the command line uses."""

# ruff: noqa: PLC0415 - a verb loads its feature, so that the SDK costs what is used of it

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack
from urllib.parse import urlsplit

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import LoginRequired
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
)
from lattice.client.settings import Settings
from lattice.client.tokens import TokenSource, token_source

if TYPE_CHECKING:
    from lattice.client.attached import RemoteTerminal
    from lattice.client.course import Course
    from lattice.client.dialling import Dialler
    from lattice.client.fetching import Fetch
    from lattice.client.following import Following
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
    ) -> RemoteTerminal:
        """Run a command in a running job, or its owner's login shell; used with `with`.

        With `terminal` (what TERM is to say) it has one of this size, else pipes.
        """
        from lattice.client.attached import RemoteTerminal
        from lattice.client.terminal import TerminalLink
        from lattice.features.attach.api import terminal as api

        call = api.attach(reference, node=node, rank=rank, command=tuple(command), tools=tools)
        clock = SystemClock()
        dialler = self.dialler(call, clock=clock)
        link = TerminalLink(call, dialler, clock, terminal=terminal, size=(rows, columns))
        return RemoteTerminal(link, clock)

    def attach_sessions(self, reference: str = "", *, only_open: bool = False) -> AttachSessions:
        """The caller's own terminals in jobs, newest first."""
        from lattice.features.attach.api import calls

        return self.call(calls.list_sessions(reference=reference, only_open=only_open))

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

    def metrics(
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

        return self.call(
            api.query_metrics(
                reference, mode=mode, duration_s=duration_s, attempt=attempt, history=history
            )
        )

    def diagnose(self, reference: str, *, areas: Sequence[str] = ()) -> Diagnosis:
        """What is sick about a running job; of `network`, `storage` and so on, or of everything."""
        from lattice.features.diag import api

        return self.call(api.diagnose(reference, areas=areas))

    def stacks(self, reference: str) -> StackPicture:
        """Where every rank of one's own running job stands."""
        from lattice.features.diag import api

        return self.call(api.take_stacks(reference))

    def report(self, reference: str, *, attempt: int = 0) -> Report:
        """What an attempt asked for and used, and advice; 0 is the newest that has started."""
        from lattice.features.report import api

        return self.call(api.get_report(reference, attempt=attempt))

    def compare(self, *references: str, metrics: Sequence[str] = ()) -> Comparison:
        """What differs between runs, each against the first, and how sure that is."""
        from lattice.features.compare import api

        return self.call(api.compare_metrics(references, metrics=metrics))

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

    def share(self, reference: str, user: str, *, duration_s: int = 0) -> AllocationSharing:
        """Let a user read what one of the caller's own wrote, for a while."""
        from lattice.features.sharing import api

        return self.call(api.share_allocation(reference, user, duration_s))

    def unshare(self, reference: str, user: str) -> AllocationSharing:
        """End that now."""
        from lattice.features.sharing import api

        return self.call(api.unshare_allocation(reference, user))

    def shares(self, reference: str) -> AllocationSharing:
        """With whom one of the caller's own is shared, and who else has read it."""
        from lattice.features.sharing import api

        return self.call(api.list_shares(reference))

    def telemetry(self, reference: str) -> Telemetry:
        """How closely one is measured, and until when."""
        from lattice.features.telemetry import api

        return self.call(api.get_telemetry(reference))

    def set_telemetry(self, reference: str, mode: str, *, duration_s: int = 0) -> Telemetry:
        """Measure one of the caller's own as `prod`, `debug` or `audit` from now on."""
        from lattice.features.telemetry import api

        return self.call(api.set_telemetry(reference, mode, duration_s))

    def read_logs(
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

        return self.call(
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
    ) -> Following[LogRecord]:
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
    ) -> Following[WatchRecord]:
        """What a job's nodes measure and judge, record by record, until it ends.

        Lost connections are made anew, and no alert is told twice.
        """
        from lattice.features.watch import api

        return self.stream(
            api.watch(reference, cursor=cursor, signs_of_life=signs_of_life, **choice)
        )

    def log_streams(self, reference: str, *, attempt: int = 0) -> LogStreams:
        """Which streams an attempt has, and how long each is."""
        from lattice.features.logs import api

        return self.call(api.list_streams(reference, attempt=attempt))

    def log_bytes(
        self,
        reference: str,
        *,
        node: str,
        stream: str = "stdout",
        source: str = "batch",
        attempt: int = 0,
        offset: int = 0,
    ) -> Fetch:
        """The very bytes of one stream, from an offset."""
        from lattice.features.logs import api

        return self.fetch(
            api.raw_logs(
                reference, node=node, stream=stream, source=source, attempt=attempt, offset=offset
            )
        )

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


def _reason(failure: OSError) -> str:
    return failure.strerror or str(failure) or "no answer"
