"""One watch on etcd: a stream that survives the loss of members and misses nothing.

A silent stream gets a `progress_request`. Without an answer the next member is used, from the
revision after the last one delivered. The revision of such an answer is not used: etcd before
3.4.25 may send it ahead of pending changes. The revision of a `progress_notify` is safe. It moves a
quiet watch past revisions that will be compacted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from grpc import aio

from lattice.adapters.etcd.members import HAS_LEADER, Member, Members, refused
from lattice.adapters.etcd.wire import rpc_pb2 as pb
from lattice.domain.state import Changed, Compacted, Entry
from lattice.wire.dial_reasons import call_failure

_log = logging.getLogger(__name__)

_SIGN_AFTER_S = 1.5
"""After this silence a progress request is sent; the answer has as long again."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class EtcdWatch:
    """Changes of a range of keys after a revision; `batches` yields them."""

    def __init__(
        self,
        members: Members,
        key: bytes,
        range_end: bytes,
        after: int,
        entry: Callable[[pb.KeyValue], Entry],
    ) -> None:
        self._members = members
        self._key = key
        self._range_end = range_end
        self._after = after
        self._entry = entry

    async def batches(self) -> AsyncGenerator[tuple[Changed, ...]]:
        """One tuple a revision, without end. Raises `Compacted`, or `Unavailable` if refused."""
        pause_s = _FIRST_PAUSE_S
        while True:
            member = await self._members.choose()
            stream = _Stream(member)
            try:
                async for response in stream.responses(self._request()):
                    pause_s = _FIRST_PAUSE_S
                    for batch in self._taken(response, stream):
                        yield batch
            except (aio.AioRpcError, _Silent) as error:
                if pause_s == _FIRST_PAUSE_S:
                    why = "silent"
                    if isinstance(error, aio.AioRpcError):
                        why = call_failure(error.code(), error.details())
                    _log.info("etcd watch: %s is left (%s)", member.name, why)
                self._members.leave(member)
            finally:
                await stream.aclose()
            # Without a leader every member fails at once, so pause.
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _request(self) -> pb.WatchRequest:
        return pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=self._key,
                range_end=self._range_end,
                # Not the next one: from 3.5.13 on etcd answers no progress request of a watch that
                # begins in the future. Events of this revision are delivered again and skipped.
                start_revision=max(1, self._after),
                progress_notify=True,
                fragment=True,
            )
        )

    def _taken(self, response: pb.WatchResponse, stream: _Stream) -> Iterator[tuple[Changed, ...]]:
        if response.compact_revision:
            raise Compacted
        if response.canceled:
            raise refused(response.cancel_reason)
        if not response.events:
            if response.watch_id == stream.watch_id and not response.created:
                self._after = max(self._after, response.header.revision)
            return
        for revision, events in stream.whole(response):
            if revision > self._after:
                self._after = revision
                yield tuple(self._changed(event) for event in events)

    def _changed(self, event: pb.Event) -> Changed:
        entry = self._entry(event.kv)
        gone = event.type == pb.Event.DELETE
        return Changed(entry.key, None if gone else entry, event.kv.mod_revision)


class _Silent(Exception):
    """The member is connected, but sends nothing."""


class _Stream:
    """One call to one member."""

    def __init__(self, member: Member) -> None:
        self.watch_id = 0
        self._call: Any = member.watch(metadata=HAS_LEADER)
        self._reading: asyncio.Task[Any] | None = None
        self._part: list[pb.Event] = []

    async def responses(self, request: pb.WatchRequest) -> AsyncGenerator[pb.WatchResponse]:
        await self._send(request)
        while True:
            response = await self._read()
            if not isinstance(response, pb.WatchResponse):  # the end of the stream
                raise _Silent
            yield response

    def whole(self, response: pb.WatchResponse) -> Iterator[tuple[int, Iterable[pb.Event]]]:
        """Events by revision; the last revision of a fragment waits for the rest of it."""
        events = [*self._part, *response.events]
        self._part = []
        if response.fragment:
            newest = events[-1].kv.mod_revision
            self._part = [each for each in events if each.kv.mod_revision == newest]
            events = events[: -len(self._part)]
        yield from groupby(events, key=lambda each: each.kv.mod_revision)

    async def aclose(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            await asyncio.wait({self._reading})
            if not self._reading.cancelled():
                self._reading.exception()

    async def _read(self) -> Any:
        # Never cancelled while it waits: cancelling a read cancels the whole call.
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        if not (await asyncio.wait({self._reading}, timeout=_SIGN_AFTER_S))[0]:
            await self._send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
            if not (await asyncio.wait({self._reading}, timeout=_SIGN_AFTER_S))[0]:
                raise _Silent
        reading, self._reading = self._reading, None
        if reading.cancelled():
            raise _Silent
        return reading.result()

    async def _send(self, request: pb.WatchRequest) -> None:
        # A write waits for the connection, and with a frozen member it may never end.
        writing = asyncio.ensure_future(self._call.write(request))
        done, _ = await asyncio.wait({writing}, timeout=_SIGN_AFTER_S)
        if not done:
            writing.cancel()
            await asyncio.wait({writing})
            raise _Silent
        if writing.cancelled():
            raise _Silent
        try:
            writing.result()
        except asyncio.InvalidStateError:
            raise _Silent from None
