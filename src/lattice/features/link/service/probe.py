"""Measures round trips to a node through this replica, at the end of a pipe."""

from __future__ import annotations

import asyncio
import secrets

from lattice.access.actor import Actor
from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable, UsageError
from lattice.domain.stream import (
    LARGEST_OPENING_BYTES,
    Carrier,
    CarrierLost,
    Lane,
    NodeStreams,
    StreamKind,
    StreamQuestion,
    digest_of,
    is_session,
)
from lattice.features.link.model import MOST_PINGS, NodeReach
from lattice.wire.carriers import relay
from lattice.wire.conduit import Conduit, ConduitClosed
from lattice.wire.v1.link_pb2 import StreamOpening

_WITHIN_S = 10.0


class ProbeService:
    """Serves probes to operators of nodes."""

    def __init__(self, nodes: NodeStreams, signer: GrantSigner, clock: Clock, replica: str) -> None:
        self._nodes = nodes
        self._signer = signer
        self._clock = clock
        self._replica = replica

    async def ping(self, actor: Actor, node: str, count: int) -> NodeReach:
        """Send `count` messages to the agent and back. Raises `Unavailable` after 10 s."""
        if not 1 <= count <= MOST_PINGS:
            raise UsageError(
                f"{count} round trips can't be asked for.", hint=f"From 1 to {MOST_PINGS}."
            )
        question = self._question(actor, node, secrets.token_hex(16), b"")
        conduit = Conduit()
        begun = self._clock.monotonic()
        try:
            async with asyncio.timeout(_WITHIN_S), self._nodes.open(question) as carrier:
                carrying = asyncio.ensure_future(conduit.carry(carrier))
                try:
                    await _round_trip(conduit, b"0")
                    opened_s = self._clock.monotonic() - begun
                    trips = [await self._timed(conduit, number) for number in range(count)]
                    await conduit.send(b"", last=True)
                finally:
                    carrying.cancel()
                    await asyncio.gather(carrying, return_exceptions=True)
        except (TimeoutError, CarrierLost, ConduitClosed):
            raise Unavailable(
                f"The way to node {node} broke while it was measured.",
                hint="Try again; `lattice nodes` shows how the node is.",
            ) from None
        return NodeReach(
            node=node,
            linked_to=self._nodes.linked_to(node),
            measured_by=self._replica,
            round_trips_ms=tuple(trips),
            opened_ms=opened_s * 1000,
        )

    async def echo(self, actor: Actor, opening: StreamOpening, caller: Carrier) -> None:
        """A pipe between the caller and the node's agent; the replica doesn't parse its frames."""
        if not is_session(opening.session) or len(opening.opening) > LARGEST_OPENING_BYTES:
            raise UsageError("The stream is not opened well.", hint="A session is 32 hex digits.")
        question = self._question(
            actor, opening.node, opening.session, opening.opening, resume=opening.resume
        )
        async with self._nodes.open(question) as node:
            await relay(caller, node)

    async def _timed(self, conduit: Conduit, number: int) -> float:
        begun = self._clock.monotonic()
        await _round_trip(conduit, str(number).encode())
        return (self._clock.monotonic() - begun) * 1000

    def _question(
        self, actor: Actor, node: str, session: str, opening: bytes, *, resume: bool = False
    ) -> StreamQuestion:
        # A probe with an opening may send much data, so it must not share a lane with terminals.
        lane = Lane.BULK if opening else Lane.INTERACTIVE
        kind = StreamKind.ECHO
        digest = digest_of(session, kind, opening)
        grant = self._signer.issue(kind.act, node, subject=actor.sub, digest=digest)
        return StreamQuestion(
            node=node,
            kind=kind,
            session=session,
            opening=opening,
            grant=grant,
            resume=resume,
            lane=lane,
        )


async def _round_trip(conduit: Conduit, payload: bytes) -> None:
    await conduit.send(payload)
    if await conduit.receive() != payload:
        raise CarrierLost("the agent sent back something else")
