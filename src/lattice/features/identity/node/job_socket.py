"""The socket on which jobs ask and report: one line of JSON, and one line as the answer.

    {"ask": "self"}               ►  {"self": {"id": "12345_7", "attempt": 2, …}}
    {"event": {"text": "done"}}   ►  {"event": {"time": "2026-11-14T13:00:00+00:00"}}
                                  ►  {"error": {"code": "job_ended", "message": "…", "hint": "…"}}

Everybody on the node may connect; the kernel says who did. Whoever is in no job, or in a job of
somebody else, gets one answer: there is nothing for it here. A job never names itself, so there is
nothing that it could name wrongly.

An account has few connections at once, and a job few questions and few events a minute. An event
is taken only after a server has said that the job runs and nobody has locked it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from lattice.access.limits import Buckets
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, NotFound, RateLimited, Unavailable, UsageError
from lattice.base.socket_peer import socket_peer
from lattice.base.strictjson import read_json
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.domain.run_events import RunEvent
from lattice.features.identity.model import JobSelf
from lattice.features.identity.node.job_events import EXAMPLE, reported_event

_log = logging.getLogger(__name__)

_LONGEST_LINE = 4096
_ASK_S = 5.0
_ANSWER_S = 20.0
_MOST = 64
_MOST_OF_ACCOUNT = 8
_PER_MINUTE = 60
_EVENTS_PER_MINUTE = 30
_MOST_JOBS = 4096
_RETRY_S = 30.0
_ASK = '{"ask": "self"}'
_MODE = 0o666


class AskingProcess(Protocol):
    """A process that connected, and the job it is in."""

    @property
    def uid(self) -> int: ...

    @property
    def job(self) -> NodeJob | None: ...


class ReportedEvents(Protocol):
    """Where events of jobs are kept on this node."""

    def now(self) -> float:
        """The servers' time, in seconds since 1970."""

    def report(self, identity: JobIdentity, event: RunEvent) -> bool:
        """Keep an event; False if the job is not known there."""


class JobSocket:
    """Listens at a path for as long as the agent runs."""

    def __init__(
        self,
        path: Path,
        identify: Callable[[socket.socket], Awaitable[AskingProcess]],
        describe: Callable[[NodeJob], Awaitable[JobSelf]],
        clock: Clock,
        events: ReportedEvents | None = None,
    ) -> None:
        """`identify` raises `NotFound` for a process that can't be known.

        Without `events` this node takes none.
        """
        self._events = events
        self._path = path
        self._identify = identify
        self._describe = describe
        self._clock = clock
        self._open: Counter[str] = Counter()
        self._asked = Buckets(_MOST_JOBS)
        self._serving: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until cancelled; if the path can't be used, try again."""
        while True:
            try:
                server = await self._listen()
            except OSError as error:
                _log.warning("jobs can't ask on %s: %s", self._path, error)
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                await server.serve_forever()
            finally:
                server.close()
                for task in self._serving:
                    task.cancel()
                await asyncio.gather(*self._serving, return_exceptions=True)
                self._path.unlink(missing_ok=True)

    async def _listen(self) -> asyncio.Server:
        if self._path.is_socket():
            self._path.unlink()  # left by an earlier process
        server = await asyncio.start_unix_server(self._take, self._path, limit=_LONGEST_LINE)
        self._path.chmod(_MODE)
        return server

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        account = socket_peer(writer.get_extra_info("socket"))
        if self._open.total() >= _MOST or self._open[account] >= _MOST_OF_ACCOUNT:
            writer.transport.abort()
            return
        self._open[account] += 1
        task = asyncio.create_task(self._serve(reader, writer, account), name="job's question")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, account: str
    ) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                writer.write(json.dumps(await self._answer(reader, writer)).encode() + b"\n")
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # the job is gone, or too slow
        finally:
            writer.transport.abort()
            self._open[account] -= 1
            if not self._open[account]:
                del self._open[account]

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Mapping[str, Any]:
        try:
            return await self._answered(reader, writer.get_extra_info("socket"))
        except LatticeError as error:
            shown = {"code": error.code, "message": error.message, "hint": error.hint or ""}
            return {"error": shown}

    async def _answered(
        self, reader: asyncio.StreamReader, connection: socket.socket
    ) -> Mapping[str, Any]:
        asked = await _question(reader)
        caller = await self._identify(connection)
        job = caller.job
        # Whoever becomes another account inside a job asks for nobody.
        if job is None or job.uid != caller.uid:
            raise NotFound("You are in no job of yours on this node.")
        if "event" in asked:
            return {"event": await self._report(job, asked["event"])}
        self._take_turn(job, "self", _PER_MINUTE, "ask")
        return {"self": _plain(await self._describe(job))}

    async def _report(self, job: NodeJob, asked: object) -> Mapping[str, str]:
        events = self._events
        if events is None:
            raise Unavailable("This node measures no jobs, so it keeps no events of them.")
        event = reported_event(asked, events.now())
        self._take_turn(job, "event", _EVENTS_PER_MINUTE, "report events")
        await self._describe(job)
        if not events.report(job.identity, event):
            raise Unavailable(
                "This node does not measure the job yet.", hint="Try again in a few seconds."
            )
        return {"time": datetime.fromtimestamp(event.time, UTC).isoformat()}

    def _take_turn(self, job: NodeJob, kind: str, per_minute: int, what: str) -> None:
        verdict = self._asked.take(str(job.identity), kind, per_minute, self._clock.monotonic())
        if not verdict.granted:
            raise RateLimited(f"A job may {what} {per_minute} times a minute.")


async def _question(reader: asyncio.StreamReader) -> Mapping[str, Any]:
    """Read it. Raises `UsageError`."""
    try:
        async with asyncio.timeout(_ASK_S):
            line = await reader.readuntil(b"\n")
        asked = read_json(line)
    except (ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise UsageError("A question is one line of JSON.", hint=_ASK) from None
    if asked == {"ask": "self"} or (isinstance(asked, dict) and asked.keys() == {"event"}):
        return dict(asked)
    raise UsageError("There is no such question.", hint=f"{_ASK} or {EXAMPLE}")


def _plain(found: JobSelf) -> dict[str, Any]:
    return {
        name: each.isoformat() if isinstance(each, datetime) else each
        for name, each in asdict(found).items()
    }
