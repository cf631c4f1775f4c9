"""One question to a node over its own stream, and the whole answer.

The caller has a deadline, so there is neither a second connection nor a ping. One task does it all,
because a page about a large job asks hundreds of nodes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from lattice.domain.pipe import BadFrame, Pipe
from lattice.domain.stream import Carrier, CarrierLost, NodeStreams, StreamQuestion


async def node_answers(nodes: NodeStreams, asked: StreamQuestion) -> AsyncGenerator[bytes, None]:
    """The answer, message by message. The reader closes the generator.

    Raises `CarrierLost`, and what `NodeStreams.open` raises.
    """
    pipe = Pipe()
    async with nodes.open(asked) as carrier:
        pipe.connected()
        while True:
            while (message := pipe.take()) is not None:
                if message.last:
                    # First of all, so that the node does not wait for a reader that has everything.
                    pipe.write(b"", last=True)
                    await _say(pipe, carrier)
                if message.payload or not message.last:
                    yield message.payload
                if message.last:
                    return
            await _say(pipe, carrier)
            try:
                pipe.receive(await carrier.receive())
            except BadFrame as fault:
                raise CarrierLost(f"what it said can't be read: {fault}") from None


async def _say(pipe: Pipe, carrier: Carrier) -> None:
    for frame in pipe.frames():
        await carrier.send(frame)
