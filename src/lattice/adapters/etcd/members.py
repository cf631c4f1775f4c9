"""The members of etcd and the choice of one: a dead, frozen or cut-off member must not hang a call.

There is one channel a member, so the target of a call is known. Calls stay with the member that
last answered, and move to the next when it does not. A frozen member stays connected and sends
nothing: only the deadline of the attempt shows that. A member that is cut off from the others
reports it, because every call carries `hasleader`.

A call that must not be repeated goes to another member only if it was certainly not executed. That
is: there was no connection, or etcd refused it before it began.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
from grpc import aio

from lattice.adapters.etcd.wire import rpc_pb2_grpc
from lattice.adapters.etcd.wire.rpc_pb2 import MemberListRequest, StatusRequest
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, LatticeError, Unavailable
from lattice.domain.quorum import QuorumMember
from lattice.domain.state import LeaseGone
from lattice.wire.dial_reasons import dial_reason

T = TypeVar("T")

TOTAL_S = 5.0
"""The time within which a call has an answer or an error."""
READ_ATTEMPT_S = 1.5
WRITE_ATTEMPT_S = 2.0
"""Longer than a slow disk takes, and short enough to report a lost change in time."""
_LEAST_ATTEMPT_S = 0.2
"""With less time left nothing is sent: the outcome would be uncertain."""
_CONNECT_S = 0.5
_NO_CONNECTION = "failed to connect to all addresses"
_PAUSE_S = 0.05
_LONGEST_NAME = 60
_LARGEST_ANSWER_BYTES = 256 * 1024 * 1024

HAS_LEADER = (("hasleader", "true"),)

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", _LARGEST_ANSWER_BYTES),
    ("grpc.enable_http_proxy", 0),
    # Reconnects fast to a member that comes back, and gives up soon on one that drops packets.
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
"""Every member would answer the same."""


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """The files for the client side of mutual TLS."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


class Member:
    """One member: its address and its stubs."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.name = endpoint.partition("://")[2]
        self.channel: aio.Channel = (
            aio.insecure_channel(self.name, options=_OPTIONS)
            if credentials is None
            else aio.secure_channel(self.name, credentials, options=_OPTIONS)
        )
        self.kv = rpc_pb2_grpc.KVStub(self.channel)
        self.lease = rpc_pb2_grpc.LeaseStub(self.channel)
        self.maintenance = rpc_pb2_grpc.MaintenanceStub(self.channel)
        self.cluster = rpc_pb2_grpc.ClusterStub(self.channel)
        # grpc's types don't support a stream that is written call by call.
        self.watch: Any = rpc_pb2_grpc.WatchStub(self.channel).Watch
        self.keep_alive: Any = self.lease.LeaseKeepAlive

    async def connected(self, within_s: float) -> bool:
        """Whether there is a connection, or one can be made in that time."""
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
    """All members. Create it in a running event loop; call `aclose` at the end."""

    def __init__(
        self,
        endpoints: Sequence[str],
        tls: EtcdTls,
        clock: Clock,
        *,
        first: Callable[[int], int] = random.randrange,
    ) -> None:
        """`first` chooses the first member: at random by default, so that replicas spread."""
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
        """The answer of the first member that gives one. Raises `Unavailable` or `LeaseGone`."""
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

    async def statuses(self, within_s: float) -> tuple[QuorumMember, ...]:
        """What each member reports of itself, all asked at the same time."""
        listed, found = await asyncio.gather(
            self._names(within_s),
            asyncio.gather(*(_status(each, within_s) for each in self._all)),
        )
        return tuple(
            replace(each, etcd_name=listed.get(each.id) or listed.get(each.name, ""))
            for each in found
        )

    async def _names(self, within_s: float) -> Mapping[str, str]:
        """The members' own names by id and by address. Empty if nobody answers."""

        async def send(member: Member, timeout_s: float) -> Mapping[str, str]:
            answer = await member.cluster.MemberList(MemberListRequest(), timeout=timeout_s)
            names = {_hex(each.ID): each.name[:_LONGEST_NAME] for each in answer.members}
            for each in answer.members:
                names |= {url.partition("://")[2]: names[_hex(each.ID)] for url in each.clientURLs}
            return names

        try:
            return await self.ask(send, repeatable=True, total_s=within_s / 2)
        except LatticeError:
            return {}

    async def choose(self) -> Member:
        """A connected member for a stream; waits until there is one."""
        while True:
            for member in self._in_turn():
                if await member.connected(_CONNECT_S):
                    return member
                self.leave(member)
            await asyncio.sleep(_PAUSE_S)

    def leave(self, member: Member) -> None:
        """Start with the next member from now on, if this one is still the first."""
        if self._all[self._first] is member:
            self._first = (self._first + 1) % len(self._all)

    def _in_turn(self) -> Iterator[Member]:
        first = self._first
        for offset in range(len(self._all)):
            yield self._all[(first + offset) % len(self._all)]


async def _status(member: Member, within_s: float) -> QuorumMember:
    if not await member.connected(min(within_s, _CONNECT_S)):
        return QuorumMember(name=member.name, reason="can't be reached", answers=False)
    try:
        found = await member.maintenance.Status(StatusRequest(), timeout=within_s)
    except aio.AioRpcError as error:
        return QuorumMember(name=member.name, reason=_fault(error), answers=False)
    return QuorumMember(
        name=member.name,
        id=_hex(found.header.member_id),
        reason="; ".join(found.errors)[:200],
        version=found.version[:40],
        size_bytes=found.dbSize,
        in_use_bytes=found.dbSizeInUse,
        is_leader=found.leader == found.header.member_id != 0,
        has_leader=found.leader != 0,
        is_learner=found.isLearner,
        term=found.raftTerm,
        index=found.raftIndex,
        applied=found.raftAppliedIndex,
    )


def _hex(number: int) -> str:
    """As etcd's own tools show the id of a member."""
    return f"{number:x}"


def _judge(error: aio.AioRpcError, *, repeatable: bool) -> None:
    """Return if the call may go to another member; otherwise raise."""
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
    """The error for an etcd that answers and refuses the server."""
    return Unavailable(
        f"etcd refuses the server: {details.removeprefix('etcdserver: ')[:200]}.",
        hint="An administrator checks quorum.cert and the role etcd gives it.",
    )


def _away(faults: dict[str, str], count: int) -> Unavailable:
    details = "; ".join(f"{name} {fault}" for name, fault in sorted(faults.items()))
    lost = any(fault == "has no leader" for fault in faults.values())
    why = "etcd has lost its quorum" if lost else f"none of {count} etcd members answers in time"
    return Unavailable(
        f"The agreed state can't be reached: {why} ({details or 'no time was left'}).",
        hint="Try again in a few seconds; an administrator looks at `etcdctl endpoint health` "
        "with the server's own certificate.",
    )


def _fault(error: aio.AioRpcError) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "is silent"
    details = (error.details() or error.code().name).removeprefix("etcdserver: ")
    if details.startswith(_NO_CONNECTION):
        return f"can't be reached: {dial_reason(details).text}"
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
