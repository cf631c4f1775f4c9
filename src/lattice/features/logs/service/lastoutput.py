"""When a running allocation last wrote: its nodes are asked, all at once and for a second.

An answer is the newest time at which one of the job's output files was written, as the node's file
system has it. It is shared for a few seconds by all who ask.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.attempts import attempts_of
from lattice.domain.lastoutput import LastOutput
from lattice.domain.nodeset import NodeSet
from lattice.domain.stream import (
    CarrierLost,
    Lane,
    NodeStreams,
    StreamKind,
    StreamQuestion,
    digest_of,
)
from lattice.features.logs.service.naming import AttemptName
from lattice.wire.conduit import Conduit, ConduitClosed
from lattice.wire.v1 import logs_pb2 as pb

WITHIN_S = 1.0
_KEPT_S = 3.0
_MOST_KEPT = 1000
_AT_ONCE = 64


class _NoAnswer(Exception):
    """In words."""


class NodeLastOutputs:
    """The port `LastOutputs`."""

    def __init__(
        self, nodes: NodeStreams, signer: GrantSigner, clock: Clock, within_s: float = WITHIN_S
    ) -> None:
        self._nodes = nodes
        self._signer = signer
        self._clock = clock
        self._within_s = within_s
        self._kept: dict[str, tuple[float, asyncio.Task[LastOutput]]] = {}

    async def of(self, allocation: Allocation) -> LastOutput | None:
        """What its nodes say, a few seconds old at most."""
        attempt = attempts_of(allocation)[-1]
        if attempt.started is None or attempt.ended is not None or allocation.state.finished:
            return None
        try:
            nodes = tuple(NodeSet.parse(attempt.nodes))
        except ValueError:
            return None
        if not nodes:
            return None
        now = self._clock.monotonic()
        key = AttemptName(allocation, attempt).prefix
        kept = self._kept.get(key)
        if kept is None or now - kept[0] > _KEPT_S:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            asking = asyncio.create_task(
                self._asked(allocation.job_id, attempt, nodes), name="last output"
            )
            kept = self._kept[key] = (now, asking)
        # Others may wait for the same answer: one who leaves does not take it from them.
        return await asyncio.shield(kept[1])

    async def _asked(self, job_id: int, attempt: Attempt, nodes: tuple[str, ...]) -> LastOutput:
        turns = asyncio.Semaphore(_AT_ONCE)
        asking = {
            asyncio.create_task(self._ask(job_id, attempt, node, turns), name=f"last {node}"): node
            for node in nodes
        }
        await asyncio.wait(asking, timeout=self._within_s)
        for task in asking:
            task.cancel()
        told = await asyncio.gather(*asking, return_exceptions=True)
        return _newest(attempt, zip(asking.values(), told, strict=True), len(nodes))

    async def _ask(self, job_id: int, attempt: Attempt, node: str, turns: asyncio.Semaphore) -> int:
        async with turns:
            conduit = Conduit()
            async with self._nodes.open(self._question(job_id, attempt, node)) as carrier:
                carrying = asyncio.ensure_future(conduit.carry(carrier))
                receiving = asyncio.ensure_future(conduit.receive())
                try:
                    await asyncio.wait((carrying, receiving), return_when=asyncio.FIRST_COMPLETED)
                    if not receiving.done():
                        raise _NoAnswer("the connection was lost")
                    message = await receiving
                    await conduit.send(b"", last=True)
                finally:
                    for task in (carrying, receiving):
                        task.cancel()
                    await asyncio.gather(carrying, receiving, return_exceptions=True)
        look = pb.OutputLook.FromString(bytes(message or b""))
        if look.trouble:
            raise _NoAnswer(look.trouble[:200])
        return look.last_ms

    def _question(self, job_id: int, attempt: Attempt, node: str) -> StreamQuestion:
        session, kind = secrets.token_hex(16), StreamKind.LOGS
        started = attempt.started.timestamp() if attempt.started else 0.0
        opening = msgspec.json.encode({"job_id": job_id, "started": started, "look": True})
        grant = self._signer.issue(
            kind.act,
            node,
            subject="server",
            job_id=job_id,
            digest=digest_of(session, kind, opening),
        )
        return StreamQuestion(
            node=node,
            kind=kind,
            session=session,
            opening=opening,
            grant=grant,
            lane=Lane.INTERACTIVE,
        )


def _newest(
    attempt: Attempt, told: Iterable[tuple[str, int | BaseException]], nodes: int
) -> LastOutput:
    times, troubles = [], []
    for node, each in told:
        if not isinstance(each, BaseException):
            times.append(each)
        elif isinstance(each, asyncio.CancelledError):
            troubles.append(f"{node} did not answer in time")
        elif isinstance(each, LatticeError):
            troubles.append(each.message)
        elif isinstance(each, _NoAnswer | CarrierLost | ConduitClosed):
            troubles.append(f"{node}: {each}")
        else:
            troubles.append(f"what {node} said can't be read")
    # What is older stood in the file before: a job may append to what another wrote.
    begun_ms = int(attempt.started.timestamp() * 1000) if attempt.started else 0
    last_ms = max((each for each in times if each >= begun_ms), default=0)
    return LastOutput(
        time=datetime.fromtimestamp(last_ms / 1000, UTC) if last_ms else None,
        nodes=nodes,
        answered=len(times),
        trouble=troubles[0] if troubles else "",
    )
