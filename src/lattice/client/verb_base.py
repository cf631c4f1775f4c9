"""The base of the generated verbs of both clients, and the verbs that are more than one call.

`lattice.client.blocking_client` and `lattice.client.async_client` implement the connections.
"""

# ruff: noqa: PLC0415 - a verb loads its feature, so that unused ones cost nothing

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.clock import Clock, SystemClock, pauses

if TYPE_CHECKING:
    from lattice.client.attached import RemoteTerminal
    from lattice.client.byte_stream import ByteStream
    from lattice.client.dialler import Dialler
    from lattice.client.record_stream import RecordStream
    from lattice.features.allocations.model import AllocationCard

T = TypeVar("T")


class VerbBase(ABC):
    """The four ways of the blocking client to call a server."""

    @abstractmethod
    def call(self, call: Call[T]) -> T:
        """Make a call and return its answer."""

    @abstractmethod
    def stream(
        self, call: StreamCall[T], *, sleep: Callable[[float], None] = time.sleep
    ) -> RecordStream[T]:
        """Follow a stream over as many connections as it takes."""

    @abstractmethod
    def fetch(self, call: BytesCall, *, sleep: Callable[[float], None] = time.sleep) -> ByteStream:
        """The bytes of one thing, over as many connections as it takes."""

    @abstractmethod
    def dialler(self, call: TerminalCall, *, clock: Clock) -> Dialler:
        """Opens the connections of a terminal."""

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

        `terminal` is the value of TERM and gives it a terminal of this size. Without it there are
        pipes.
        """
        from lattice.client.attached import RemoteTerminal
        from lattice.client.terminal import TerminalLink
        from lattice.features.attach import terminal_call

        call = terminal_call.attach(
            reference, node=node, rank=rank, command=tuple(command), tools=tools
        )
        clock = SystemClock()
        dialler = self.dialler(call, clock=clock)
        link = TerminalLink(call, dialler, clock, terminal=terminal, size=(rows, columns))
        return RemoteTerminal(link, clock)

    def wait(
        self,
        reference: str,
        *,
        timeout_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> AllocationCard:
        """Poll until the allocation has finished or the time is over, and return the last card."""
        from lattice.features.allocations.operations import get_allocation

        card = self.call(get_allocation(reference))
        for pause_s in pauses(timeout_s):
            if card.allocation.state.finished:
                break
            sleep(pause_s)
            # By its full name from here on, because the id alone could mean a newer one later.
            card = self.call(get_allocation(card.allocation.ref))
        return card
