"""The members of etcd and how one is chosen: a dead, frozen or cut-off one must not hang a call.

One channel a member, so that it is known whom a call went to. Calls stay with the member that last
answered and move on when it does not. A frozen member keeps its connection and says nothing: only
the deadline of the attempt shows it. A member cut off from the others says so by itself, because
every call carries `hasleader`.

What must not be done twice is sent to another member only if it was certainly not done: the
connection was never made, or etcd refused before it began.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
from grpc import aio

from lattice.adapters.etcd.wire import rpc_pb2_grpc
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.state import LeaseGone

T = TypeVar("T")

TOTAL_S = 5.0
"""In which a call has an answer or an error."""
READ_ATTEMPT_S = 1.5
WRITE_ATTEMPT_S = 2.0
"""Longer than a slow disk, short enough that a change lost with a leader is told in time."""
_LEAST_ATTEMPT_S = 0.2
"""With less time left nothing is sent: it would end in doubt where there is none."""
_CONNECT_S = 0.5
_PAUSE_S = 0.05
_LARGEST_ANSWER_BYTES = 256 * 1024 * 1024

HAS_LEADER = (("hasleader", "true"),)

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", _LARGEST_ANSWER_BYTES),
    ("grpc.enable_http_proxy", 0),
    # A member that comes back is found at once, and one that drops packets is given up soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]

_REFUSED_FIRST = (
    "etcdserver: no leader",
    "etcdserver: not capable",
    "etcdserver: rpc not supported for learner",
    "etcdserver: too many requests",
    "failed to connect to all addresses",
)
_LEASE_NOT_FOUND = "etcdserver: requested lease not found"
_NO_SPACE = "etcdserver: mvcc: database space exceeded"
_ELSEWHERE_AS_WELL = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Every member would say the same."""


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """The files of the client's side of mutual TLS."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


class Member:
    """One member: its address, and the calls it takes."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.name = endpoint.partition("://")[2]
        self.channel: aio.Channel = (
            aio.insecure_channel(self.name, options=_OPTIONS)
            if credentials is None
            else aio.secure_channel(self.name, credentials, options=_OPTIONS)
        )
        self.kv = rpc_pb2_grpc.KVStub(self.channel)
        self.lease = rpc_pb2_grpc.LeaseStub(self.channel)
        # grpc's types know no stream that is written to call by call.
        self.watch: Any = rpc_pb2_grpc.WatchStub(self.channel).Watch
        self.keep_alive: Any = self.lease.LeaseKeepAlive
        self.maintenance = rpc_pb2_grpc.MaintenanceStub(self.channel)

    async def connected(self, within_s: float) -> bool:
        """Whether there is a connection, or could be made one in that time."""
        state = self.channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return True
        try:
            async with asyncio.timeout(within_s):
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        return False
                    await self.channel.wait_for_state_change(state)
                    state = self.channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True


class Members:
    """All of them. Made where a loop runs; `aclose` at the end."""

    def __init__(
        self,
        endpoints: Sequence[str],
        tls: EtcdTls,
        clock: Clock,
        *,
        first: Callable[[int], int] = random.randrange,
    ) -> None:
        """`first` says with which member to begin: any one, so that replicas spread."""
        if not endpoints:
            raise ConfigurationError(
                "No member of etcd is named.", hint="Set quorum.endpoints to its members' URLs."
            )
        self._clock = clock
        safe = [urlsplit(each).scheme == "https" for each in endpoints]
        credentials = _credentials(tls) if any(safe) else None
        self._all = [
            Member(each, credentials if is_safe else None)
            for each, is_safe in zip(endpoints, safe, strict=True)
        ]
        self._first = first(len(self._all))

    async def aclose(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(member.channel.close(None) for member in self._all))

    async def ask(
        self,
        call: Callable[[Member, float], Awaitable[T]],
        *,
        repeatable: bool,
        attempt_s: float = READ_ATTEMPT_S,
        total_s: float = TOTAL_S,
    ) -> T:
        """What the first member that can answers. Raises `Unavailable` or `LeaseGone`."""
        end_s = self._clock.monotonic() + total_s
        faults: dict[str, str] = {}
        while True:
            for member in self._in_turn():
                left_s = end_s - self._clock.monotonic()
                if left_s < _LEAST_ATTEMPT_S:
                    raise _away(faults, len(self._all))
                if not await member.connected(min(left_s, _CONNECT_S)):
                    faults[member.name] = "can't be reached"
                    self.leave(member)
                    continue
                left_s = max(end_s - self._clock.monotonic(), _LEAST_ATTEMPT_S)
                try:
                    return await call(member, min(attempt_s, left_s))
                except aio.AioRpcError as error:
                    self.leave(member)
                    faults[member.name] = _fault(error)
                    _judge(error, repeatable=repeatable)
            await asyncio.sleep(_PAUSE_S)

    async def choose(self) -> Member:
        """One that is connected, for a stream; waits until there is one."""
        while True:
            for member in self._in_turn():
                if await member.connected(_CONNECT_S):
                    return member
                self.leave(member)
            await asyncio.sleep(_PAUSE_S)

    def leave(self, member: Member) -> None:
        """Begin with the next one from now on, if this one is still the first."""
        if self._all[self._first] is member:
            self._first = (self._first + 1) % len(self._all)

    def _in_turn(self) -> Iterator[Member]:
        first = self._first
        for offset in range(len(self._all)):
            yield self._all[(first + offset) % len(self._all)]


def _judge(error: aio.AioRpcError, *, repeatable: bool) -> None:
    """Return if another member may be asked."""
    details = error.details() or ""
    if details == _LEASE_NOT_FOUND:
        raise LeaseGone from None
    if details == _NO_SPACE:
        raise Unavailable(
            "The agreed state can't be changed: etcd's database is full.",
            hint="An administrator compacts and defragments it, then `etcdctl alarm disarm`.",
        ) from None
    if error.code() in _ELSEWHERE_AS_WELL:
        raise refused(details) from None
    if not repeatable and not details.startswith(_REFUSED_FIRST):
        raise Unavailable(
            f"etcd did not confirm a change ({_fault(error)}): it may have happened or not.",
            hint="Look whether it happened before trying again.",
        ) from None


def refused(details: str) -> Unavailable:
    """The error for an etcd that is there and does not want us."""
    return Unavailable(
        f"etcd refuses the server: {details.removeprefix('etcdserver: ')[:200]}.",
        hint="An administrator checks quorum.cert and the role etcd gives it.",
    )


def _away(faults: dict[str, str], count: int) -> Unavailable:
    said = "; ".join(f"{name} {fault}" for name, fault in sorted(faults.items()))
    lost = any(fault == "has no leader" for fault in faults.values())
    why = "etcd has lost its quorum" if lost else f"none of {count} etcd members answers in time"
    return Unavailable(
        f"The agreed state can't be reached: {why} ({said or 'no time was left'}).",
        hint="Try again in a few seconds; an administrator looks at `etcdctl endpoint health` "
        "with the server's own certificate.",
    )


def _fault(error: aio.AioRpcError) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "is silent"
    details = (error.details() or error.code().name).removeprefix("etcdserver: ")
    return "has no leader" if details == "no leader" else f"answers: {details[:120]}"


def _credentials(tls: EtcdTls) -> grpc.ChannelCredentials:
    def read(file: Path | None) -> bytes | None:
        try:
            return None if file is None else file.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"{file} can't be read: {error.strerror}.",
                hint="Check quorum.ca, quorum.cert and quorum.key.",
            ) from None

    return grpc.ssl_channel_credentials(read(tls.ca), read(tls.key), read(tls.cert))
