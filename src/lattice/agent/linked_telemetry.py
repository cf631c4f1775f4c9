"""Telemetry over the link: samples to the replica that this node is linked to, and its settings.

Samples go on one stream, as rows of numbers; it stays open as long as the connection does. A
replica of the release before has no such stream. It gets batches, until the node is linked anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from lattice.base.errors import Unavailable
from lattice.features.link.node.dialler import Linked, linked_calls
from lattice.features.telemetry.convert.batches import StoredBatch
from lattice.features.telemetry.node.row_messages import DeclaredNames, OutgoingRows
from lattice.wire.carriers import EOF
from lattice.wire.v1 import telemetry_pb2 as pb
from lattice.wire.v1.telemetry_pb2_grpc import MetricIntakeStub

_STORE_S = 30.0
_POLL_S = 2.0


class _NoStream(Exception):
    """The replica is of the release before."""


@dataclass(eq=False, slots=True)
class _RowStream:
    """An open stream for rows, and what was declared on it."""

    channel: aio.Channel
    call: Any
    names: DeclaredNames = field(default_factory=DeclaredNames)

    async def exchange(self, message: pb.SampleRows) -> pb.StoredSamples:
        """Send a message and wait for its answer. Raises `Unavailable` and gRPC's errors."""
        answer: Any = EOF
        try:
            await self.call.write(message)
            answer = await self.call.read()
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise _NoStream from None
            raise
        except (aio.UsageError, asyncio.InvalidStateError):
            pass  # it ended meanwhile
        if not isinstance(answer, pb.StoredSamples):
            raise Unavailable("The server has ended the stream of samples.", hint="It opens again.")
        return answer


class LinkedTelemetry:
    """Calls the replica that this node is linked to."""

    def __init__(self, link: Callable[[], Linked | None]) -> None:
        self._link = link
        self._stream: _RowStream | None = None
        self._without_stream: Linked | None = None
        """The link to a replica that has no stream for samples."""

    async def store(self, outgoing: OutgoingRows) -> StoredBatch:
        """Send rows. Raises `LatticeError`."""
        link = self._link()
        async with linked_calls(link) as channel:
            if link is not self._without_stream:
                try:
                    return await self._over_stream(channel, outgoing)
                except _NoStream:
                    self._without_stream = link
            stub: Any = MetricIntakeStub(channel)
            answers = [
                await stub.StoreSamples(batch, timeout=_STORE_S) for batch in outgoing.batches()
            ]
        return _added(answers)

    async def _over_stream(self, channel: aio.Channel, outgoing: OutgoingRows) -> StoredBatch:
        stream, self._stream = self._stream, None
        if stream is None or stream.channel is not channel or stream.call.done():
            stub: Any = MetricIntakeStub(channel)
            stream = _RowStream(channel, stub.StreamSamples())
        stored = []
        try:
            async with asyncio.timeout(_STORE_S):
                for message in stream.names.messages(outgoing):
                    answer = await stream.exchange(message)
                    if answer.again:
                        break
                    stored.append(answer)
            # Only a stream whose messages are all answered is used again.
            self._stream = stream
        except TimeoutError:
            raise Unavailable(
                f"The server has not taken samples for {_STORE_S:g} s.", hint="They are sent again."
            ) from None
        finally:
            if self._stream is None:
                stream.call.cancel()
        if answer.again:
            raise Unavailable(answer.again)
        return _added(stored)

    async def follow(self) -> AsyncIterator[pb.JobsTold]:
        """Yield until the server ends it or the node gets a new link. Raises `LatticeError`."""
        link = self._link()
        async with linked_calls(link) as channel:
            stub: Any = MetricIntakeStub(channel)
            call = stub.FollowJobs(pb.FollowJobsRequest())
            reading: asyncio.Future[Any] | None = None
            try:
                while True:
                    reading = asyncio.ensure_future(call.read())
                    if not await self._come(reading, link):
                        return
                    message = reading.result()
                    if message is EOF:
                        return
                    yield message
            finally:
                call.cancel()
                if reading is not None:
                    await asyncio.gather(reading, return_exceptions=True)

    async def _come(self, reading: asyncio.Future[Any], link: Linked | None) -> bool:
        """False if the node got a new link meanwhile: the server may be frozen or gone."""
        while not reading.done():
            await asyncio.wait((reading,), timeout=_POLL_S)
            now = self._link()
            if not reading.done() and now is not None and now is not link:
                return False
        return True


def _added(answers: Iterable[pb.StoredSamples]) -> StoredBatch:
    added = StoredBatch(0)
    for each in answers:
        added = StoredBatch(
            added.stored + each.stored,
            added.refused + each.refused,
            added.reason or each.reason,
        )
    return added
