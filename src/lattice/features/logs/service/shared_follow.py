"""One run of a query for all its followers on this server.

Each follower reads what there is by itself. Then it joins the run that follows the same query.
Lines are found, filtered and encoded once, and a follower costs little more than what is sent to
it. A follower that reads too slowly leaves the run, and continues by itself from its position.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AsyncExitStack, aclosing
from types import TracebackType

from lattice.base.errors import Unavailable
from lattice.domain.logs import Position, StreamName
from lattice.features.logs.blocks import LinesFrame, PackedLines, RecordGroup, shared_numbers
from lattice.features.logs.model import LogBlock
from lattice.features.logs.service.log_query import LogQueryRun, RecordWithCursor

_JOIN_S = 0.3
"""How long a follower waits until a run has read as far as itself."""
_AHEAD_BYTES = 64 * 1024
"""How much a run reads before its fastest follower has taken it."""
_BEHIND_BYTES = 1024 * 1024
"""A follower that is further behind leaves the run."""
_RECORD_BYTES = 128
"""Counted for a record besides its text."""


class SharedFollower:
    """One of those who read a shared run."""

    def __init__(self, follow: SharedFollow, taken_bytes: int) -> None:
        self._follow = follow
        self._waiting: asyncio.Future[None] | None = None
        self.coming: deque[tuple[RecordGroup, int]] = deque()
        """Groups that were not taken yet, each with the bytes up to its end."""
        self.taken_bytes = taken_bytes
        self.left_at: dict[StreamName, Position] | None = None
        """Where the follower continues by itself; None while it need not."""

    async def groups(self) -> AsyncIterator[RecordGroup]:
        """What comes, until the run ends or this follower is too slow. Raises its error."""
        while True:
            while self.coming:
                group, self.taken_bytes = self.coming.popleft()
                group.is_taken = True
                if not self.coming:
                    self._follow.feed()
                yield group
            if self.left_at is not None or self._follow.is_over:
                break
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self.left_at is None and self._follow.error is not None:
            # Else it would grow with each follower that raises it.
            raise self._follow.error.with_traceback(self._follow.traceback)

    def wake(self) -> None:
        """There is something to take, or nothing will come."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def leave(self) -> None:
        """Take nothing more."""
        self._follow.remove(self)


class SharedFollow:
    """A run with its followers. It reads as fast as the fastest of them."""

    def __init__(
        self, run: LogQueryRun, stack: AsyncExitStack, on_end: Callable[[SharedFollow], None]
    ) -> None:
        """`stack` closes what the run has opened."""
        self._run = run
        self._stack = stack
        self._on_end = on_end
        self._numbers = shared_numbers()
        self._followers: dict[SharedFollower, None] = {}
        self._joiners: dict[asyncio.Future[SharedFollower], LogQueryRun] = {}
        self._open: RecordGroup | None = None
        """The last group; it grows until someone takes it."""
        self._given_bytes = self._untaken_bytes = 0
        self._hungry = asyncio.Event()
        self.is_over = False
        self.error: Exception | None = None
        self.traceback: TracebackType | None = None
        self.task = asyncio.create_task(self._read(), name="shared log follow")

    def add(self) -> SharedFollower:
        """A follower from here on."""
        self._open = None
        follower = SharedFollower(self, self._given_bytes)
        self._followers[follower] = None
        return follower

    async def join(self, run: LogQueryRun) -> SharedFollower | None:
        """A follower that continues where the other run ends; None if this one is behind it.

        What the other run has not read up to there, it is to read then.
        """
        joined: asyncio.Future[SharedFollower] = asyncio.get_running_loop().create_future()
        self._joiners[joined] = run
        try:
            if self._run.is_resting:
                self._admit()
            await asyncio.wait((joined,), timeout=_JOIN_S)
        except BaseException:
            if joined.done():
                joined.result().leave()
            raise
        finally:
            self._joiners.pop(joined, None)
        return joined.result() if joined.done() else None

    def remove(self, follower: SharedFollower) -> None:
        """The run ends with its last follower."""
        self._followers.pop(follower, None)
        if not self._followers:
            # Not before its first step, which opens what it closes.
            asyncio.get_running_loop().call_soon(self._end_unread)
        self.feed()

    def _end_unread(self) -> None:
        if not self._followers:
            self.task.cancel()

    def feed(self) -> None:
        """Someone has taken all there is."""
        self._untaken_bytes = 0
        self._hungry.set()

    async def _read(self) -> None:
        try:
            async with self._stack, aclosing(self._run.follow()) as groups:
                async for group in groups:
                    if group:
                        self._give(group)
                    else:
                        self._admit()
                    if self._untaken_bytes >= (_AHEAD_BYTES if group else 1):
                        self._hungry.clear()
                        await self._hungry.wait()
        except asyncio.CancelledError:
            # Without followers nobody hears it.
            self.error = Unavailable("This server is stopping.", hint="Try again.")
            raise
        except Exception as error:  # noqa: BLE001 - each follower raises it
            self.error, self.traceback = error, error.__traceback__
        finally:
            self.is_over = True
            self._on_end(self)
            for each in self._followers:
                each.wake()

    def _give(self, records: list[RecordWithCursor]) -> None:
        size = sum(map(_bytes_of, records))
        self._given_bytes += size
        self._untaken_bytes += size
        group = self._open
        if group is not None and not group.is_taken:
            group.records += records
            for each in self._followers:
                each.coming[-1] = (group, self._given_bytes)
            return
        group = self._open = RecordGroup(self._numbers, records)
        last, slow = (group, self._given_bytes), []
        for each in self._followers:
            each.coming.append(last)
            each.wake()
            if self._given_bytes - each.taken_bytes > _BEHIND_BYTES and len(each.coming) > 1:
                slow.append(each)
        if slow:
            self._leave_behind(slow)

    def _leave_behind(self, slow: list[SharedFollower]) -> None:
        self._open = None
        positions = {name: each.position for name, each in self._run.view.streams.items()}
        for each in slow:
            each.left_at = positions
            del self._followers[each]

    def _admit(self) -> None:
        """Let those in whose own runs have read no further than this one."""
        for joined, run in list(self._joiners.items()):
            run.found.take_streams(run.found.rounds.take_streams())
            if not run.view.can_leave_to(self._run.view):
                continue
            # A frame that continues the one before it would be of no use to who has not got that.
            for stream in self._run.view.streams.values():
                stream.lines.read_passed()
            run.view.leave_to(self._run.view)
            joined.set_result(self.add())
            del self._joiners[joined]


class SharedFollows:
    """The shared runs of this server."""

    def __init__(self) -> None:
        self._follows: dict[Hashable, SharedFollow] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def follower(
        self, run: LogQueryRun, stack: AsyncExitStack
    ) -> tuple[SharedFollower, bool]:
        """A follower of what comes after the run's history; True if it joined another run.

        Otherwise the run itself is shared from now on, and owns what `stack` closes.
        """
        key = run.shared_key
        known = None if key is None else self._follows.get(key)
        if known is not None and not known.is_over:
            joined = await known.join(run)
            if joined is not None:
                return joined, True

        def forget(ended: SharedFollow) -> None:
            if key is not None and self._follows.get(key) is ended:
                del self._follows[key]

        follow = SharedFollow(run, stack.pop_all(), forget)
        self._tasks.add(follow.task)
        follow.task.add_done_callback(self._tasks.discard)
        if key is not None:
            self._follows[key] = follow
        return follow.add(), False

    async def aclose(self) -> None:
        """End all runs."""
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _bytes_of(record: RecordWithCursor) -> int:
    found, _ = record
    if isinstance(found, PackedLines):
        return _RECORD_BYTES + len(found.stored)
    if isinstance(found, LinesFrame | LogBlock):
        return _RECORD_BYTES + len(found.text)
    return _RECORD_BYTES
