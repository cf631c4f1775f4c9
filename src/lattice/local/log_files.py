"""The lines of a job's own files as records: what is there, and what comes.

There is one stream for each file, from the node that runs the script. Lines that were there before
have the time of the file, marked as older; lines that come have the time at which they were read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from lattice.base.call import StreamInterpreter
from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, LatticeError, UsageError
from lattice.base.text import inert
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.attempts import attempts_of, chosen_attempt
from lattice.domain.logs import GapCause, LogKind, Piece, Position
from lattice.features.allocations.model import AllocationCard
from lattice.features.logs.blocks import LinesFrame
from lattice.features.logs.lines import LineAssembler, Lines
from lattice.features.logs.model import (
    USUAL_PAGE_LINES,
    LogBlock,
    LogGap,
    LogNote,
    LogPage,
    LogQuery,
    LogRecord,
    LogStreamFacts,
    LogStreams,
    NoteKind,
)
from lattice.features.logs.operations import (
    LogStreamsRequest,
    ReadLogsRequest,
    StreamLogsRequest,
)
from lattice.local.log_choice import LineChoice, is_labelled, shows_past
from lattice.local.output_files import LocalOutput, OutputFinder, open_output

_SOURCE = "batch"
_PIECE_BYTES = 256 * 1024
_POLL_S = 0.25
_FIRST_QUESTION_S, _LONGEST_QUESTION_S, _GROWTH = 1.0, 10.0, 1.5
_ALIVE_S = 5.0
_LAST_WRITES_S = 1.0
"""A shared file system may show the last lines a little later."""
_SCRIPT_ONLY = (
    "Read from {paths}: what the job's script writes. Files of `srun --output` need a server."
)
_ASSUMED = "Slurm does not know the job's file any more; {paths} fits by name, owner and time."


class CardSource(Protocol):
    """Looks up the caller's own allocation. Raises `NotFound` and `Unavailable`."""

    def __call__(self, reference: str, /) -> Awaitable[AllocationCard]: ...


@dataclass(slots=True)
class _OpenLog:
    """One file while it is read."""

    kind: LogKind
    path: str
    node: str
    assembler: LineAssembler = field(default_factory=lambda: LineAssembler(Position()))
    offset: int = 0
    line: int = 0
    identity: tuple[int, int] | None = None
    labelled: bool = False
    shrunk_at: int | None = None
    """Its last size, if it was truncated and the gap was not reported yet."""
    lost: int = 0
    """Bytes of the file before a truncation: they count in positions."""

    def read(self) -> tuple[bytes, float]:
        """The next bytes, and the file's time. Raises `OSError`."""
        # Opened for each reading: only then does NFS look at the server again.
        descriptor = open_output(self.path)
        try:
            found = os.fstat(descriptor)
            identity = (found.st_dev, found.st_ino)
            if self.identity is None:
                self.labelled = is_labelled(os.pread(descriptor, _PIECE_BYTES, 0))
            elif identity != self.identity or found.st_size < self.offset:
                self.shrunk_at = self.offset
                self.offset = 0
            self.identity = identity
            return os.pread(descriptor, _PIECE_BYTES, self.offset), found.st_mtime
        finally:
            os.close(descriptor)

    def piece(self, text: bytes, time_ms: int, *, late: bool) -> Iterator[Lines]:
        """Whole lines, if the text ends any."""
        at = Position(self.lost + self.offset, self.line)
        self.offset += len(text)
        found = Piece(at, time_ms, late, text)
        self.line = found.end.line
        yield from self.assembler.all_lines(found)

    def begin_anew(self) -> int:
        """Continue with the file that replaced the one before. Returns the bytes read before."""
        before, self.shrunk_at = self.shrunk_at or 0, None
        self.lost += before
        self.assembler = LineAssembler(Position(self.lost, self.line))
        return before

    def skip_to(self, offset: int) -> None:
        """Begin at this offset, and count the lines before it. Raises `OSError`."""
        while self.offset < offset:
            text, _ = self.read()
            text = text[: offset - self.offset]
            if not text:
                break
            self.offset += len(text)
            self.line += text.count(b"\n")
        self.assembler = LineAssembler(Position(self.offset, self.line))

    def tail_offset(self, lines: int) -> int:
        """Where the last so many lines begin. Raises `OSError`."""
        descriptor = open_output(self.path)
        try:
            size = at = os.fstat(descriptor).st_size
            if not lines:
                return size
            # A line feed at the end ends the last line and begins none.
            left = lines + (os.pread(descriptor, 1, size - 1) == b"\n" if size else 0)
            while at > 0:
                begin = max(0, at - _PIECE_BYTES)
                text = os.pread(descriptor, at - begin, begin)
                end = len(text)
                while (end := text.rfind(b"\n", 0, end)) >= 0:
                    left -= 1
                    if not left:
                        return begin + end + 1
                at = begin
            return 0
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Job:
    """The allocation and the files of its newest attempt."""

    allocation: Allocation
    attempt: Attempt
    output: LocalOutput

    @property
    def paths(self) -> str:
        return " and ".join(self.output.paths.values())


class JobLogs:
    """Answers the questions of `lattice logs`."""

    def __init__(
        self,
        card: CardSource,
        files: OutputFinder,
        clock: Clock,
        run: Callable[[Awaitable[Any]], Any],
        note: Callable[[str], None],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`run` runs asynchronous work to its end."""
        self._card = card
        self._files = files
        self._clock = clock
        self._run = run
        self._note = note
        self._sleep = sleep

    async def streams(self, request: LogStreamsRequest) -> LogStreams:
        """The files that are here."""
        job = await self._job(request.id)
        return LogStreams(
            allocation=job.allocation.ref,
            attempt=request.attempt or job.attempt.number,
            attempts=len(attempts_of(job.allocation)),
            finished=job.allocation.state.finished,
            streams=tuple(self._facts(job)),
        )

    def _facts(self, job: _Job) -> Iterator[LogStreamFacts]:
        for log in _logs_of(job.output):
            with suppress(OSError):
                size = log.tail_offset(0)
                log.skip_to(size)
                yield LogStreamFacts(
                    node=log.node,
                    stream=log.kind,
                    source=_SOURCE,
                    bytes=log.offset,
                    lines=log.line,
                    path=log.path,
                )

    def raw(self, reference: str, stream: str, begin: int) -> tuple[Iterator[bytes], int | None]:
        """The bytes of a file from an offset to its present end."""
        job = self._run(self._job(reference))
        path = job.output.paths.get(LogKind(stream))
        if path is None:
            raise _nothing(job)
        try:
            descriptor = open_output(path)
        except OSError as error:
            raise _nothing(job, error) from None
        end = os.fstat(descriptor).st_size
        return _bytes_of(descriptor, begin, end), end

    async def page(self, request: ReadLogsRequest) -> LogPage:
        """One page with all that was asked for."""
        job = await self._job(request.id)
        _check(request, job)
        wanted = request.limit or USUAL_PAGE_LINES
        records: list[LogRecord] = []
        lines = 0
        for each in self._present(job, request, self._logs_for(job, request)):
            if isinstance(each, LogBlock):
                if request.offset is not None and each.offset < request.offset:
                    continue
                lines += each.count
            records.append(each)
            if lines >= wanted:
                break
        return LogPage(
            allocation=job.allocation.ref,
            attempt=job.attempt.number,
            attempts=len(attempts_of(job.allocation)),
            records=tuple(records),
            finished=job.allocation.state.finished,
        )

    def follow(self, request: StreamLogsRequest, reading: StreamInterpreter[Any]) -> Iterator[Any]:
        """The lines, and with `follow` those that come until the job ends."""
        job = self._run(self._job(request.id))
        _check(request, job)
        logs = self._logs_for(job, request)
        if not request.follow:
            self._report_files(job)
            yield from self._present(job, request, logs)
            return
        if any(status for status in map(_exists, logs)):
            self._report_files(job)
        else:
            self._note(f"{inert(job.paths)} does not exist yet, or not on this machine.")
        yield from self._followed(job, request, logs, reading)

    def _report_files(self, job: _Job) -> None:
        text = _ASSUMED if job.output.assumed else _SCRIPT_ONLY
        self._note(text.format(paths=inert(job.paths)))

    async def _job(self, reference: str) -> _Job:
        allocation = (await self._card(reference)).allocation
        return _Job(allocation, chosen_attempt(allocation, 0), await self._files.find(allocation))

    def _logs_for(self, job: _Job, query: LogQuery) -> list[_OpenLog]:
        """The files of the query. Raises `DataUnavailable` if there can be none."""
        if job.attempt.started is None:
            raise DataUnavailable(
                f"Allocation {job.allocation.id} has not started, so it has written nothing.",
                hint=f"`lattice status {job.allocation.id}` says what it waits for.",
            )
        logs = [each for each in _logs_of(job.output) if each.kind in (query.stream or LogKind)]
        if not logs:
            raise _nothing(job)
        if query.nodes and job.output.node not in query.nodes:
            raise UsageError(
                f"Without a server only what node {job.output.node} writes is known: the job's "
                "script runs there.",
                hint="Leave --node out.",
            )
        return logs

    def _present(self, job: _Job, query: LogQuery, logs: list[_OpenLog]) -> Iterator[LogRecord]:
        """What is in the files now, one after the other."""
        choice = LineChoice(query)
        last: OSError | None = None
        found = False
        for log in logs:
            try:
                yield from self._one(job, query, log, choice)
                found = True
            except OSError as error:
                last = error
        if last is not None and not found:
            raise _nothing(job, last)

    def _one(
        self, job: _Job, query: LogQuery, log: _OpenLog, choice: LineChoice
    ) -> Iterator[LogRecord]:
        _, written = log.read()
        if not shows_past(query, job.attempt.started, datetime.fromtimestamp(written, UTC)):
            log.skip_to(log.tail_offset(0))
            return
        if query.ranks and not log.labelled:
            raise UsageError(
                "Which rank wrote a line is not known without a server, unless `srun --label` "
                "wrote all of them.",
                hint="Leave --rank out.",
            )
        if query.tail is not None and not choice.has_conditions:
            log.skip_to(log.tail_offset(query.tail))
        tail = query.tail if choice.has_conditions else None
        chosen: list[LogRecord] = []
        while True:
            text, written = log.read()
            if not text or log.shrunk_at is not None:
                break
            for record in self._chosen(log, text, written, choice, late=True):
                if tail is None:
                    yield record
                else:
                    chosen = _last_lines([*chosen, record], tail)
        yield from chosen
        if not query.follow:
            yield from self._rest(log, choice)

    def _chosen(
        self, log: _OpenLog, text: bytes, written: float, choice: LineChoice, *, late: bool
    ) -> Iterator[LogRecord]:
        moment_ms = int(1000 * (written if late else self._clock.now().timestamp()))
        for lines in log.piece(text, moment_ms, late=late):
            yield from _records(log, lines, choice)

    def _rest(self, log: _OpenLog, choice: LineChoice) -> Iterator[LogRecord]:
        """The beginning of a line that has no end yet."""
        lines = log.assembler.unfinished(int(1000 * self._clock.now().timestamp()), late=True)
        if lines is not None:
            yield from _records(log, lines, choice)

    def _followed(
        self,
        job: _Job,
        query: StreamLogsRequest,
        logs: list[_OpenLog],
        reading: StreamInterpreter[Any],
    ) -> Iterator[Any]:
        choice = LineChoice(query)
        for log in logs:
            if _exists(log):
                yield from self._one(job, query, log, choice)
        state = _Following(self._clock)
        while True:
            came = [record for log in logs for record in self._new(log, choice)]
            yield from came
            if came:
                state.wrote()
                continue
            if state.is_settled or (query.until is not None and self._clock.now() >= query.until):
                break
            if state.alive_due():
                yield from reading.alive(self._clock.now())
            if state.question_due():
                self._ask_state(query.id, state)
            self._sleep(_POLL_S)
        for log in logs:
            yield from self._rest(log, choice)
        if state.is_settled:
            yield _end(state.allocation or job.allocation, self._clock.now())

    def _new(self, log: _OpenLog, choice: LineChoice) -> Iterator[LogRecord]:
        try:
            text, written = log.read()
        except OSError:
            # Not there yet, or the file system is away for a moment.
            return
        if log.shrunk_at is not None:
            yield from self._rest(log, choice)
            yield self._gap(log)
        if text:
            yield from self._chosen(log, text, written, choice, late=False)

    def _gap(self, log: _OpenLog) -> LogGap:
        """Somebody replaced or truncated the file: what was written in between is unknown."""
        log.begin_anew()
        return LogGap(
            node=log.node,
            stream=log.kind,
            source=_SOURCE,
            seq=log.line,
            offset=log.lost,
            time=self._clock.now(),
            cause=GapCause.TRUNCATED,
        )

    def _ask_state(self, reference: str, state: _Following) -> None:
        try:
            state.learn(self._run(self._card(reference)).allocation)
        except LatticeError as problem:
            state.report(problem, self._note)


class _Following:
    """When to ask Slurm whether the job runs, and when to show that nothing comes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause_s = _FIRST_QUESTION_S
        self._ask_at = clock.monotonic()
        self._alive_at = clock.monotonic() + _ALIVE_S
        self._troubled = False
        self.allocation: Allocation | None = None
        self._over: float | None = None
        """Until when to wait for last lines, once the job has ended."""

    @property
    def is_settled(self) -> bool:
        """True if the job is over, and nothing came for a moment."""
        return self._over is not None and self._clock.monotonic() >= self._over

    def learn(self, allocation: Allocation) -> None:
        """Take what Slurm has of the job now."""
        self.allocation = allocation
        if allocation.state.finished:
            self._over = self._clock.monotonic() + _LAST_WRITES_S

    def wrote(self) -> None:
        self._alive_at = self._clock.monotonic() + _ALIVE_S

    def alive_due(self) -> bool:
        now = self._clock.monotonic()
        if now < self._alive_at:
            return False
        self._alive_at = now + _ALIVE_S
        return True

    def question_due(self) -> bool:
        now = self._clock.monotonic()
        if self._over is not None or now < self._ask_at:
            return False
        self._ask_at = now + self._pause_s
        self._pause_s = min(self._pause_s * _GROWTH, _LONGEST_QUESTION_S)
        return True

    def report(self, problem: LatticeError, note: Callable[[str], None]) -> None:
        """Once: the file is read on meanwhile."""
        if not self._troubled:
            note(f"{inert(problem.message)} The file is read all the same.")
        self._troubled = True


def _logs_of(output: LocalOutput) -> list[_OpenLog]:
    return [_OpenLog(kind, path, output.node) for kind, path in output.paths.items()]


def _exists(log: _OpenLog) -> bool:
    try:
        log.read()
    except OSError:
        return False
    return True


def _records(log: _OpenLog, lines: Lines, choice: LineChoice) -> Iterator[LogRecord]:
    for rank, run in choice.chosen(lines, labelled=log.labelled):
        yield LinesFrame.of(log.node, log.kind, _SOURCE, rank, run).record()


def _last_lines(records: list[LogRecord], count: int) -> list[LogRecord]:
    """The blocks with the last so many lines."""
    found: list[LogRecord] = []
    left = count
    for record in reversed(records):
        if left <= 0:
            break
        if isinstance(record, LogBlock):
            found.insert(0, _end_of(record, left))
            left -= record.count
        else:
            found.insert(0, record)
    return found


def _end_of(block: LogBlock, lines: int) -> LogBlock:
    if block.count <= lines:
        return block
    text = "\n".join(block.text.split("\n")[-lines - 1 :])
    return replace(block, seq=block.seq + block.count - lines, count=lines, text=text)


def _bytes_of(descriptor: int, begin: int, end: int) -> Iterator[bytes]:
    try:
        while begin < end:
            text = os.pread(descriptor, min(_PIECE_BYTES, end - begin), begin)
            if not text:
                return
            begin += len(text)
            yield text
    finally:
        os.close(descriptor)


def _check(query: ReadLogsRequest | StreamLogsRequest, job: _Job) -> None:
    """Raise `UsageError` for what only a server knows."""
    if query.cursor:
        raise UsageError("A cursor is a server's; there is none here.", hint="Leave --from out.")
    if query.attempt not in {0, job.attempt.number}:
        raise UsageError(
            "What an earlier attempt wrote needs a server: all attempts have one file.",
            hint="Leave --attempt and --previous out.",
        )


def _nothing(job: _Job, error: OSError | None = None) -> DataUnavailable:
    why = job.output.reason or "it has no such file"
    if error is not None:
        why = f"{job.paths} can't be read here: {error.strerror or error}"
    return DataUnavailable(
        f"There is no output of allocation {job.allocation.id} here: {why}.",
        hint="A file on a node's own disk can be read there: "
        f"srun --overlap --jobid={job.allocation.job_id} tail FILE",
    )


def _end(allocation: Allocation, now: datetime) -> LogNote:
    code = "" if allocation.exit_code is None else f", exit {allocation.exit_code}"
    return LogNote(kind=NoteKind.END, time=now, words=f"{allocation.state.value}{code}")
