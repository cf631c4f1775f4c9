"""When a running allocation last wrote: all its nodes are asked at once, for at most a second.

The result is the newest modification time of the job's output files, by the node's file system. It
is cached for a few seconds for all callers.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

import msgspec

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.last_output import LastOutput
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.domain.stream import NodeStreams, StreamKind
from lattice.features.logs.service.log_keys import AttemptName
from lattice.observe.node_questions import (
    NoAnswer,
    ask_all,
    node_answers,
    nodes_of,
    started_s,
    stream_question,
)
from lattice.wire.v1 import logs_pb2 as pb

WITHIN_S = 1.0
_TTL_S = 3.0
_MAX_ENTRIES = 1000


class NodeLastOutputs:
    """The port `LastOutputs`."""

    def __init__(
        self, nodes: NodeStreams, signer: GrantSigner, clock: Clock, within_s: float = WITHIN_S
    ) -> None:
        self._nodes = nodes
        self._signer = signer
        self._clock = clock
        self._within_s = within_s
        self._cache: dict[str, tuple[float, asyncio.Task[LastOutput]]] = {}

    async def of(self, allocation: Allocation) -> LastOutput | None:
        """The answers of its nodes, at most 3 s old; None if it does not run."""
        attempt = attempts_of(allocation)[-1]
        if attempt.started is None or attempt.ended is not None or allocation.state.finished:
            return None
        name = AttemptName(allocation, attempt)
        if not nodes_of(name):
            return None
        now = self._clock.monotonic()
        entry = self._cache.get(name.prefix)
        if entry is None or now - entry[0] > _TTL_S:
            if len(self._cache) >= _MAX_ENTRIES:
                self._cache.clear()
            asking = asyncio.create_task(self._asked(name), name="last output")
            entry = self._cache[name.prefix] = (now, asking)
        # Others may wait for the same task, so a cancelled caller must not cancel it.
        return await asyncio.shield(entry[1])

    async def _asked(self, attempt: JobAttempt) -> LastOutput:
        nodes = nodes_of(attempt)
        found, silences = await ask_all(
            nodes, lambda node: self._ask(attempt, node), self._within_s
        )
        # Older times are from before the job: it may append to an existing file.
        begun_ms = int(started_s(attempt) * 1000)
        last_ms = max((each for each in found.values() if each >= begun_ms), default=0)
        return LastOutput(
            time=datetime.fromtimestamp(last_ms / 1000, UTC) if last_ms else None,
            nodes=len(nodes),
            answered=len(found),
            trouble=_trouble(silences[0]) if silences else "",
        )

    async def _ask(self, attempt: JobAttempt, node: str) -> int:
        asked_for = {"job_id": attempt.allocation.job_id, "started": started_s(attempt)}
        opening = msgspec.json.encode(asked_for | {"look": True})
        asked = stream_question(self._signer, StreamKind.LOGS, node, attempt, opening)
        async with aclosing(node_answers(self._nodes, asked)) as messages:
            message = await anext(messages, b"")
        answer = pb.OutputLook.FromString(message)
        if answer.trouble:
            raise NoAnswer(answer.trouble[:200])
        return answer.last_ms


def _trouble(silent: NodeUnreachable) -> str:
    """The reason, with the name of the node if it does not name it."""
    return silent.reason if silent.node in silent.reason else f"{silent.node}: {silent.reason}"
