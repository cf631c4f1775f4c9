"""Serves streams of the kind `stacks`: the helper's answer, one message per process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from lattice.base.errors import LatticeError, NotFound
from lattice.base.text import inert
from lattice.domain.jobfacts import RankStack, StackFrame
from lattice.domain.probed import StackReport
from lattice.domain.stream import Session
from lattice.features.diag.convert import (
    STACKS_UNKNOWN,
    BadFacts,
    stack_message,
    stacks_end_message,
    stacks_failed_message,
    stacks_opening_of,
)
from lattice.features.diag.node.job_runs import JobRuns

NOBODY = "no process of the job's ranks runs on it"


class StackFeed:
    """Implements `Serve`."""

    def __init__(
        self,
        node: str,
        runs: JobRuns,
        dump: Callable[[bytes], Awaitable[Sequence[StackReport]]],
    ) -> None:
        """`dump` sends the server's request to the helper. It raises `LatticeError`."""
        self._node = node
        self._runs = runs
        self._dump = dump

    async def __call__(self, session: Session, opening: bytes) -> None:
        try:
            asked = stacks_opening_of(opening)
        except BadFacts as fault:
            raise NotFound(str(fault)) from None
        identity = self._runs.find(asked.job_id, asked.started)
        if identity is None:
            await session.send(STACKS_UNKNOWN, last=True)
            return
        try:
            self._runs.check_readable(identity)
            answers = await self._dump(asked.request)
        except LatticeError as error:
            await session.send(stacks_failed_message(error.message.rstrip(".")), last=True)
            return
        if not answers:
            await session.send(stacks_failed_message(NOBODY), last=True)
            return
        for each in answers:
            await session.send(stack_message(stack_of(self._node, each)))
        await session.send(stacks_end_message(self._runs.began(identity)), last=True)


def stack_of(node: str, answer: StackReport) -> RankStack:
    """Convert the helper's answer, made safe to show."""
    return RankStack(
        node=node,
        rank=answer.rank,
        pid=answer.pid,
        language=answer.language,
        frames=tuple(
            StackFrame(inert(each.function), inert(each.file), each.line) for each in answer.frames
        ),
        state=inert(answer.state),
        waits_in=inert(answer.waits_in),
        trouble=inert(answer.trouble),
        command=inert(answer.command),
    )
