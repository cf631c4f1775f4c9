"""Every verb of the async door: what it asks, and what comes back.

How a server is reached is the door's, `lattice.client.asynchronous`.
"""

# ruff: noqa: PLC0415 - a verb loads its feature, so that the SDK costs what is used of it

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, Unpack

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.clock import Clock, SystemClock
from lattice.base.pace import pauses

if TYPE_CHECKING:
    from lattice.client.attached_async import AsyncRemoteTerminal
    from lattice.client.dialling import Dialler
    from lattice.client.fetching import AsyncFetch
    from lattice.client.following import AsyncFollowing
    from lattice.features.allocations.model import AllocationCard, AllocationList
    from lattice.features.attach.model import AttachSessions
    from lattice.features.compare.model import Comparison
    from lattice.features.diag.model import Diagnosis, StackPicture
    from lattice.features.identity.model import AuthDiscovery, Identity
    from lattice.features.locks.model import LockList
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


class AsyncVerbs(ABC):
    """The verbs, on the four ways a door has of asking."""

    @abstractmethod
    async def call(self, call: Call[T], *, anonymous: bool = False) -> T:
        """Make a call. `anonymous` sends no token."""

    @abstractmethod
    def stream(
        self,
        call: StreamCall[T],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncFollowing[T]:
        """Follow a stream over as many connections as it takes."""

    @abstractmethod
    def fetch(
        self, call: BytesCall, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AsyncFetch:
        """Bytes of one thing, over as many connections as it takes."""

    @abstractmethod
    def dialler(self, call: TerminalCall, *, clock: Clock) -> Dialler:
        """What opens the connections of a terminal."""

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

    async def locks(self) -> LockList:
        """The locks in force that the caller may end."""
        from lattice.features.locks import api

        return await self.call(api.list_locks())

    async def lock(
        self, kind: str, target: str = "", *, reason: str, duration_s: int = 0
    ) -> LockList:
        """Shut a `user`, a `node`, a `session` or `all` out; 0: until it is unlocked."""
        from lattice.features.locks import api

        return await self.call(api.create_lock(kind, target, reason, duration_s))

    async def unlock(self, kind: str, target: str = "") -> LockList:
        """End a lock."""
        from lattice.features.locks import api

        return await self.call(api.delete_lock(kind, target))

    async def whoami(self) -> Identity:
        """Who the server takes the caller for."""
        from lattice.features.identity import api

        return await self.call(api.whoami())

    async def discovery(self) -> AuthDiscovery:
        """Where and as which client to sign in; needs no token."""
        from lattice.features.identity import api

        return await self.call(api.auth_discovery(), anonymous=True)
