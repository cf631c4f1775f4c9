"""A running pipe end: messages on one side, one carrier after another on the other.

`carry` runs one connection until it is lost. The owner of the conduit finds the next and calls it
again. For `send` and `receive` that is only a delay. If frames have not flowed both ways for a few
seconds, one of both ends sends a ping. A carrier that is silent for longer than `silence_s` is
given up. When a session resumes, a carrier that is silent from the start is given up much sooner.

gRPC probes the connections of agents: one probe for all streams of a connection, without the event
loop. There a ping only shows that the other end still serves the stream, so it is rare.

Over a direct carrier no task stands between the pipe and the connection. A frame is handled in the
callback of its arrival, and a message is sent in the call that writes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lattice.domain.pipe import WINDOW_BYTES, BadFrame, Pipe
from lattice.domain.stream import Carrier, CarrierLost
from lattice.wire.carriers import GrpcCarrier
from lattice.wire.direct import DirectCarrier

PING_EVERY_S = 5.0
SILENCE_S = 15.0
FIRST_WORD_S = 4.0
_RARE_PING_S = 10.0
_LONG_SILENCE_S = 20.0
_PROBED_PING_S = 30.0
_PROBED_SILENCE_S = 60.0


class ConduitClosed(Exception):
    """The session has ended or was given up; no more messages."""


class Conduit:
    """One end of a session."""

    def __init__(
        self,
        window_bytes: int = WINDOW_BYTES,
        *,
        ping_every_s: float = PING_EVERY_S,
        silence_s: float = SILENCE_S,
        first_word_s: float = FIRST_WORD_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pipe = Pipe(window_bytes)
        self._ping_every_s = ping_every_s
        self._silence_s = silence_s
        self._first_word_s = first_word_s
        self._sleep = sleep
        self._outgoing = asyncio.Event()
        self._incoming = asyncio.Event()
        self._room = asyncio.Event()
        self._closed = False
        self._ended = False
        self._begun = self._met = False
        self._received = self._sent = False
        """Whether frames flowed since the last check; an own ping does not count."""
        self._ping_due = False
        self._carrying = asyncio.Lock()
        self._direct: DirectCarrier | None = None
        self._driving: asyncio.Future[None] | None = None
        """Done when the direct carrier is no longer needed or is lost."""
        self._on_met: Callable[[], None] | None = None

    @property
    def begun(self) -> bool:
        """True once the other end was heard: from then on the session can only be resumed."""
        return self._begun

    @property
    def met(self) -> bool:
        """True once the other end was heard on the current or last connection."""
        return self._met

    @property
    def over(self) -> bool:
        """True when both ends have sent and confirmed their last message, or it was closed."""
        return self._closed or self._pipe.over

    async def send(self, payload: bytes, *, last: bool = False) -> None:
        """Write a message. Raises `ConduitClosed`."""
        while not self.try_send(payload, last=last):
            self._check_open()
            self._room.clear()
            await self._room.wait()

    def try_send(self, payload: bytes, *, last: bool = False) -> bool:
        """Write a message if there is room at once; False if not, or if the session is over."""
        if self._closed or not self._pipe.writable:
            return False
        self._pipe.write(payload, last=last)
        self._go()
        return True

    async def receive(self) -> bytes | None:
        """The next message; None after the last. Raises `ConduitClosed`."""
        if self._ended:
            return None
        while (message := self._pipe.take()) is None:
            self._check_open()
            self._incoming.clear()
            await self._incoming.wait()
        # Reading makes room, which the other end may be waiting for.
        if self._pipe.ready:
            self._go()
        if message.last:
            self._ended = True
            return message.payload or None
        return message.payload

    def close(self) -> None:
        """Give up the session. Waiting calls raise `ConduitClosed`."""
        self._closed = True
        for event in (self._outgoing, self._incoming, self._room):
            event.set()
        self._finish_driving()

    async def carry(
        self, carrier: Carrier | DirectCarrier, on_met: Callable[[], None] | None = None
    ) -> None:
        """Run over this carrier until the session is over, or raise `CarrierLost` or `BadFrame`.

        `on_met` is called when the other end is first heard on it.
        """
        async with self._carrying:
            self._pipe.connected()
            self._met = False
            self._on_met = on_met
            is_probed = isinstance(carrier, GrpcCarrier) and carrier.is_probed
            steps = [self._listen(is_probed=is_probed)]
            if isinstance(carrier, DirectCarrier):
                steps.append(self._drive(carrier))
            else:
                self._outgoing.set()
                steps += [self._write_to(carrier), self._read_from(carrier)]
            tasks = [asyncio.ensure_future(step) for step in steps]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
        if self.over:
            return
        for end in ends:
            if isinstance(end, BadFrame):
                self.close()
            if isinstance(end, Exception):
                raise end
        raise CarrierLost("the connection is gone")

    def _go(self) -> None:
        """Send what can be sent."""
        if self._direct is None:
            self._outgoing.set()
        else:
            self._flush(self._direct)

    def _flush(self, carrier: DirectCarrier) -> None:
        if carrier.paused:
            return
        for parts in self._pipe.parts():
            carrier.write(*parts)
            self._sent = True
        if self._ping_due:
            self._ping_due = False
            carrier.write(self._pipe.ping())
        if self.over:
            self._finish_driving()

    def _finish_driving(self) -> None:
        if self._driving is not None and not self._driving.done():
            self._driving.set_result(None)

    async def _drive(self, carrier: DirectCarrier) -> None:
        driving = self._driving = asyncio.get_running_loop().create_future()
        self._direct = carrier
        try:
            carrier.attach(_ConduitSink(self._take, lambda: self._flush(carrier), driving))
            self._flush(carrier)
            await driving
        finally:
            self._direct = self._driving = None
            carrier.detach()

    def _take(self, frame: bytes | memoryview) -> None:
        """Handle a frame. Raises `BadFrame`."""
        self._received = self._begun = True
        if not self._met:
            self._met = True
            if self._on_met is not None:
                self._on_met()
        self._pipe.receive(frame)
        self._incoming.set()
        self._room.set()
        if self._pipe.ready:
            self._go()
        elif self.over:
            self._finish_driving()

    async def _write_to(self, carrier: Carrier) -> None:
        while not self.over:
            await self._outgoing.wait()
            self._outgoing.clear()
            for frame in self._pipe.frames():
                await carrier.send(frame)
                self._sent = True
            if self._ping_due:
                self._ping_due = False
                await carrier.send(self._pipe.ping())

    async def _read_from(self, carrier: Carrier) -> None:
        while not self.over:
            self._take(await carrier.receive())

    async def _listen(self, *, is_probed: bool) -> None:
        """Ping the other end if it is quiet; give up after too long a silence.

        Frames in both directions show both ends that the other one runs. The end that answers a
        ping sends none itself.
        """
        every_s, silence_s = self._ping_every_s, self._silence_s
        if is_probed:
            every_s, silence_s = max(every_s, _PROBED_PING_S), max(silence_s, _PROBED_SILENCE_S)
        if self._begun:
            await self._sleep(self._first_word_s)
            if not self._met:
                raise CarrierLost(f"no answer within {self._first_word_s:.0f} s")
        silent_s = 0.0
        self._received = self._sent = False
        while True:
            await self._sleep(every_s)
            silent_s = 0.0 if self._received else silent_s + every_s
            if silent_s >= silence_s:
                raise CarrierLost(f"nothing was heard for {silent_s:.0f} s")
            flowed = self._received and self._sent
            self._received = self._sent = False
            if not flowed:
                self._ping_due = True
                self._go()

    def _check_open(self) -> None:
        if self._closed:
            raise ConduitClosed("the session is over")


def patient_conduit() -> Conduit:
    """For streams of which there are thousands, and where nobody waits for a key's echo."""
    return Conduit(ping_every_s=_RARE_PING_S, silence_s=_LONG_SILENCE_S)


class _ConduitSink:
    """Hands frames to the pipe; `driving` gets what ends the connection."""

    def __init__(
        self,
        take: Callable[[bytes], None],
        flush: Callable[[], None],
        driving: asyncio.Future[None],
    ) -> None:
        self._take = take
        self._driving = driving
        self.resumed = flush

    def received(self, frame: bytes) -> None:
        if self._driving.done():
            return
        try:
            self._take(frame)
        except BadFrame as fault:
            self._driving.set_exception(fault)

    def lost(self, reason: str) -> None:
        if not self._driving.done():
            self._driving.set_exception(CarrierLost(reason))
