"""Serves streams of the kind `stacks`: the helper's answer, one message per process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from lattice.base.errors import LatticeError, NotFound
from lattice.base.text import inert
from lattice.domain.jobfacts import RankStack, StackFrame
from lattice.domain.probed import StackLook
from lattice.domain.stream import Session
from lattice.features.diag.convert.facts import (
    BadFacts,
    stack_tell,
    stacks_end_tell,
    stacks_failed_tell,
    stacks_opening_of,
    stacks_unknown_tell,
)
from lattice.features.diag.node.lives import JobRuns

NOBODY = "no process of the job's ranks runs on it"


class StackFeed:
    """Implements `Serve`."""

    def __init__(
        self,
        node: str,
        lives: JobRuns,
        dump: Callable[[bytes], Awaitable[Sequence[StackLook]]],
    ) -> None:
        """`dump` sends the server's request to the helper. It raises `LatticeError`."""
        self._node = node
        self._lives = lives
        self._dump = dump

    async def __call__(self, session: Session, opening: bytes) -> None:
        try:
            asked = stacks_opening_of(opening)
        except BadFacts as fault:
            raise NotFound(str(fault)) from None
        identity = self._lives.find(asked.job_id, asked.started)
        if identity is None:
            await session.send(stacks_unknown_tell(), last=True)
            return
        try:
            self._lives.check_readable(identity)
            looks = await self._dump(asked.request)
        except LatticeError as error:
            await session.send(stacks_failed_tell(error.message.rstrip(".")), last=True)
            return
        if not looks:
            await session.send(stacks_failed_tell(NOBODY), last=True)
            return
        for each in looks:
            await session.send(stack_tell(stack_of(self._node, each)))
        await session.send(stacks_end_tell(self._lives.began(identity)), last=True)


def stack_of(node: str, look: StackLook) -> RankStack:
    """Convert the helper's answer, made safe to show."""
    return RankStack(
        node=node,
        rank=look.rank,
        pid=look.pid,
        language=look.language,
        frames=tuple(
            StackFrame(inert(each.function), inert(each.file), each.line) for each in look.frames
        ),
        state=inert(look.state),
        waits_in=inert(look.waits_in),
        trouble=inert(look.trouble),
        command=inert(look.command),
    )
