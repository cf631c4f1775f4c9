"""A job's mounts, processes and stacks by the root helper beside the agent.

The server encodes and grants the requests; they go to the helper unchanged. The answer comes in
sealed memory, and is not trusted.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from typing import TypeVar

from lattice.adapters.helper.channel import HelperChannel
from lattice.base import packet
from lattice.base.errors import (
    DataUnavailable,
    InternalError,
    LatticeError,
    PermissionRefused,
    Unavailable,
    UsageError,
)
from lattice.base.text import inert
from lattice.domain.privileged import Answer, Outcome
from lattice.domain.probed import (
    LARGEST_BYTES,
    BadProbe,
    MountsReport,
    StackReport,
    TaskReport,
    read_mounts,
    read_stacks,
    read_tasks,
)

_LOG_HINT = "An administrator finds the reason in the log of lattice-helper on that node."
_UNCHANGING = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_KINDS: dict[Outcome, type[LatticeError]] = {
    Outcome.FAILED: DataUnavailable,
    Outcome.BUSY: Unavailable,
    Outcome.UNTIMELY: Unavailable,
    Outcome.ACCOUNT_REFUSED: PermissionRefused,
    Outcome.REFUSED: PermissionRefused,
    Outcome.BROKEN: InternalError,
}
_T = TypeVar("_T")


class HelperProbes:
    """Sends the server's requests. Every call raises errors of `lattice.base.errors`."""

    def __init__(self, channel: HelperChannel) -> None:
        self._channel = channel

    async def mounts(self, request: bytes) -> MountsReport:
        return await self._asked(request, read_mounts)

    async def tasks(self, request: bytes) -> tuple[TaskReport, ...]:
        return await self._asked(request, read_tasks)

    async def stacks(self, request: bytes) -> tuple[StackReport, ...]:
        return await self._asked(request, read_stacks)

    async def _asked(self, request: bytes, read: Callable[[bytes], _T]) -> _T:
        try:
            answer, passed = await self._channel.ask_written(request)
        except (Unavailable, UsageError):
            raise Unavailable(
                "lattice-helper on the node does not answer.",
                hint="An administrator starts lattice-helper on that node again.",
            ) from None
        except OSError as error:
            raise Unavailable(
                f"lattice-helper did not answer: {str(error) or 'not in time'}.", hint=_LOG_HINT
            ) from None
        try:
            if answer.outcome is not Outcome.DONE:
                raise _error(answer)
            return read(_content(passed))
        except BadProbe as fault:
            message = f"lattice-helper said what can't be: {fault}."
            raise InternalError(message, hint=_LOG_HINT) from None
        finally:
            packet.close_all(passed)


def _content(passed: list[int]) -> bytes:
    """The content of the one descriptor. Raises `BadProbe`."""
    if len(passed) != 1:
        raise BadProbe("not one descriptor")
    try:
        sealed = fcntl.fcntl(passed[0], fcntl.F_GET_SEALS)
        found = os.fstat(passed[0])
        size = found.st_size
        if sealed & _UNCHANGING != _UNCHANGING or not stat.S_ISREG(found.st_mode):
            raise BadProbe("memory that can change")
        if size > LARGEST_BYTES:
            raise BadProbe("too much")
        return os.pread(passed[0], size, 0)
    except OSError:
        raise BadProbe("no memory") from None


def _error(answer: Answer) -> LatticeError:
    message = inert(answer.message)[:200]
    if answer.outcome in {Outcome.NOT_OFFERED, Outcome.BAD_QUESTION}:
        return Unavailable(
            f"lattice-helper on the node can't be asked that: {message}.",
            hint="An administrator brings agent and helper to the same version.",
        )
    kind = _KINDS.get(answer.outcome, InternalError)
    return kind(f"lattice-helper: {message}.", hint=_LOG_HINT)
