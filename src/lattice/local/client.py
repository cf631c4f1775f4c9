"""Carries out the calls of commands in this process, as far as that works without a server."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import msgspec

from lattice.access.actor import Actor
from lattice.adapters.slurm.command_scheduler import CommandScheduler
from lattice.adapters.slurm.commands import SlurmCommands
from lattice.base.call import BytesCall, Call, StreamCall
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, Unavailable, UsageError
from lattice.domain.source import Source
from lattice.features.allocations.model import (
    AllocationCard,
    AllocationList,
    HistoryQuery,
    ListQuery,
)
from lattice.features.allocations.operations import (
    GET_ALLOCATION,
    LIST_ALLOCATIONS,
    LIST_HISTORY,
    CardRequest,
)
from lattice.features.allocations.service import AllocationService
from lattice.features.logs.operations import LIST_LOG_STREAMS, READ_LOGS, STREAM_LOGS
from lattice.features.top.operations import QUERY_METRICS
from lattice.local.log_files import JobLogs
from lattice.local.output_files import OutputFinder
from lattice.local.top import LocalTop

T = TypeVar("T")

_CARD = re.compile(r"/v1/allocations/([^/]+)")
_RAW = re.compile(r"/v1/allocations/([^/]+)/logs/raw")
_NEEDED = ("squeue", "sacct", "scontrol")
_LIMIT_BYTES = 256 * 1024 * 1024
_TIMEOUT_S = 30.0
_OWN_ONLY = "Without a server you see your own jobs alone."
_UNKNOWN = (
    "Without a server nothing is known of a job's tenant and vCluster, nor who else reads it."
)


class LocalFollowed(Iterator[T]):
    """The records of a stream. It has no cursor: there is nobody to ask again."""

    cursor = ""

    def __init__(self, records: Iterator[T]) -> None:
        self._records = records

    def __next__(self) -> T:
        return next(self._records)

    def close(self) -> None:
        """Stop reading."""
        close = getattr(self._records, "close", None)
        if close is not None:
            close()


class LocalFetched:
    """The bytes of a file."""

    def __init__(self, pieces: Iterator[bytes], end: int | None) -> None:
        self.end = end
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


class LocalClient:
    """What a command's shell asks instead of a server. `note` and `warn` write to the person."""

    def __init__(
        self,
        clock: Clock,
        *,
        note: Callable[[str], None],
        warn: Callable[[str], None],
        commands: SlurmCommands | None = None,
        user: str = "",
    ) -> None:
        """Raises `ConfigurationError` on a machine without Slurm's commands."""
        if commands is None:
            check_commands()
            commands = SlurmCommands(timeout_s=_TIMEOUT_S, limit_bytes=_LIMIT_BYTES)
        self._user = user or pwd.getpwuid(os.geteuid()).pw_name
        self._actor = Actor(sub=self._user, user=self._user)
        self._warn = warn
        self._note = note
        self._is_explained = False
        self._runner = asyncio.Runner()
        self._one_at_a_time = threading.Lock()
        self._scheduler = CommandScheduler(commands, self._user, clock)
        files = OutputFinder(self._scheduler.job_files)
        self._allocations = AllocationService(self._scheduler, clock, outputs=files)
        self._logs = JobLogs(self._card, files, clock, self._run, note)
        self._top = LocalTop(self._card, clock)
        self._operations: dict[str, Callable[[Any], Awaitable[Any]]] = {
            LIST_ALLOCATIONS.rpc: self._recent,
            LIST_HISTORY.rpc: self._history,
            GET_ALLOCATION.rpc: self._card_of,
            LIST_LOG_STREAMS.rpc: self._logs.streams,
            READ_LOGS.rpc: self._logs.page,
            QUERY_METRICS.rpc: self._top.read,
        }

    def call(self, call: Call[T]) -> T:
        """The answer. Raises what a server would, and `UsageError` for what needs one."""
        operation = self._operations.get(call.rpc)
        if operation is not None:
            return cast("T", self._run(operation(call.request)))
        found = _CARD.fullmatch(call.path)
        if found is None or call.method != "GET":
            raise _needs_server()
        # A feature that reads a part of another's answer has a type of its own for it.
        card = self._run(self._card(unquote(found[1])))
        return msgspec.convert(msgspec.to_builtins(card), call.answer)

    def stream(self, call: StreamCall[T]) -> LocalFollowed[T]:
        """The records of a stream."""
        if call.rpc != STREAM_LOGS.rpc:
            raise _needs_server()
        return LocalFollowed(self._logs.follow(cast("Any", call.request), call.reading()))

    def fetch(self, call: BytesCall) -> LocalFetched:
        """The bytes of one output file."""
        found = _RAW.fullmatch(call.path)
        if found is None:
            raise _needs_server()
        asked = dict(call.params)
        begin = int(asked.get("offset", "0"))
        pieces, end = self._logs.raw(unquote(found[1]), asked.get("stream", "stdout"), begin)
        return LocalFetched(pieces, end)

    def close(self) -> None:
        """End the step that measures, and the event loop."""
        self._top.close()
        self._runner.close()

    def _run(self, work: Awaitable[T]) -> T:
        # The live screen asks from a thread of its own.
        with self._one_at_a_time:
            return self._runner.run(_awaited(work))

    async def _recent(self, query: ListQuery) -> AllocationList:
        self._explain_own(query)
        await self._scheduler.fresh()
        answer = await self._allocations.recent(self._actor, query)
        _check_any(answer.sources)
        return answer

    async def _history(self, query: HistoryQuery) -> AllocationList:
        self._explain_own(query)
        await self._scheduler.fresh()
        return await self._allocations.history(self._actor, query)

    def _explain_own(self, query: ListQuery) -> None:
        if query.all or query.user not in {"", self._user}:
            self._warn(_OWN_ONLY)

    async def _card_of(self, request: CardRequest) -> AllocationCard:
        card = await self._card(request.id, last_output=request.last_output)
        if not self._is_explained:
            self._is_explained = True
            self._note(_UNKNOWN)
        return card

    async def _card(self, reference: str, *, last_output: bool = False) -> AllocationCard:
        await self._scheduler.fresh()
        return await self._allocations.card(self._actor, reference, last_output=last_output)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def check_commands() -> None:
    """Raise `ConfigurationError` if one of Slurm's commands is missing."""
    missing = [each for each in _NEEDED if shutil.which(each) is None]
    if missing:
        raise ConfigurationError(
            f"Slurm's commands are not on this machine: {', '.join(missing)} can't be found.",
            hint="Use --local on a login node of the cluster, or name a server with --api-url.",
        )


def _needs_server() -> UsageError:
    return UsageError("That needs a Lattice server.", hint="Leave --local out.")


def _check_any(sources: tuple[Source, ...]) -> None:
    """An empty list would look like "no jobs" if nothing of Slurm answers."""
    if sources and not any(each.ok for each in sources):
        raise Unavailable(
            f"Slurm does not answer: {sources[0].error or 'no reason was given'}",
            hint="Try again in a minute; your jobs are not affected.",
        )
