"""The operations of the feature and the functions that make their calls. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, TypedDict, Unpack
from urllib.parse import quote

from lattice.base.call import BytesCall, Call, StreamCall, params
from lattice.base.choices import one_of
from lattice.base.operation import PREFIX, FieldRule, Operation, StreamOperation
from lattice.domain.logs import LogKind
from lattice.domain.request_fields import Attempt, Reference, checked_reference
from lattice.features.logs.block_reader import FORMAT, best_format
from lattice.features.logs.model import (
    USUAL_PAGE_LINES,
    JobEndCard,
    LogBlock,
    LogGap,
    LogNote,
    LogPage,
    LogQuery,
    LogRecord,
    LogStreams,
)
from lattice.features.logs.stream_dedup import LogDeduplicator

KINDS: dict[str, type[LogRecord]] = {"lines": LogBlock, "gap": LogGap, "note": LogNote}
_SERVICE = "lattice.v1.LogService/"
_HISTORY_PATIENCE_S = 60.0
_BEGINNING = ("tail", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLogsRequest(LogQuery):
    """Which lines of which allocation, as pages."""

    id: Reference
    follow: Annotated[bool, FieldRule(grpc_only=True)] = False
    """Ignored; the rpc has the message of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLogsRequest(LogQuery):
    """Which lines of which allocation, as a stream."""

    id: Reference
    limit: Annotated[int, FieldRule(grpc_only=True)] = 0
    """Ignored; the rpc has the message of a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStreamsRequest:
    """Which attempt of which allocation; 0 is the newest."""

    id: Reference
    attempt: Attempt = 0


READ_LOGS = Operation(
    rpc=_SERVICE + "ReadLogs",
    method="GET",
    path="/allocations/{id}/logs",
    request=ReadLogsRequest,
    answer=LogPage,
    timeout_s=30.0,
    stops_with_caller=True,
)
STREAM_LOGS = StreamOperation(
    rpc=_SERVICE + "StreamLogs",
    path="/allocations/{id}/logs/stream",
    request=StreamLogsRequest,
    kinds=KINDS,
    beginning=_BEGINNING,
    binary=FORMAT,
)
LIST_LOG_STREAMS = Operation(
    rpc=_SERVICE + "ListLogStreams",
    method="GET",
    path="/allocations/{id}/logs/streams",
    request=LogStreamsRequest,
    answer=LogStreams,
    stops_with_caller=True,
)


class LogChoice(TypedDict, total=False):
    """Which lines; by default all of the newest attempt."""

    attempt: int
    """From 1; 0 is the newest."""
    stream: str
    """`stdout` or `stderr`; empty is both."""
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    since: datetime | None
    until: datetime | None
    tail: int | None
    """The last lines, at most so many; 0: no existing line."""
    grep: str
    """A pattern (RE2) that lines must match."""
    exclude: str
    """A pattern that lines must not match."""


def read_logs(
    reference: str,
    *,
    limit: int = 0,
    cursor: str = "",
    offset: int | None = None,
    **choice: Unpack[LogChoice],
) -> Call[LogPage]:
    """One page with `limit` lines, from as many answers as needed."""
    request = ReadLogsRequest(
        id=reference, limit=limit, cursor=cursor, offset=offset, **_conditions(choice)
    )
    return READ_LOGS.call(request)._replace(patience_s=_HISTORY_PATIENCE_S, parts=PARTS)


class _PageParts:
    """Joins the parts of a page that needed a long search."""

    def rest(self, call: Call[LogPage], answer: LogPage) -> Call[LogPage] | None:
        """The call for the next part; None if the page has enough lines."""
        wanted = int(dict(call.params).get("limit", USUAL_PAGE_LINES))
        lines = sum(each.count for each in answer.records if isinstance(each, LogBlock))
        if not answer.cursor or lines >= wanted:
            return None
        instead = {"limit", "cursor", *_BEGINNING}
        others = tuple(pair for pair in call.params if pair[0] not in instead)
        more = params(limit=wanted - lines, cursor=answer.cursor)
        return call._replace(params=(*others, *more))

    def joined(self, answer: LogPage, part: LogPage) -> LogPage:
        """Join two parts without repeated notes and gaps."""
        gaps = {each for each in answer.records if isinstance(each, LogGap)}
        new = (each for each in part.records if not isinstance(each, LogNote))
        return replace(part, records=(*answer.records, *(each for each in new if each not in gaps)))


PARTS = _PageParts()


def stream_logs(
    reference: str,
    *,
    follow: bool = False,
    cursor: str = "",
    signs_of_life: bool = False,
    **choice: Unpack[LogChoice],
) -> StreamCall[LogRecord]:
    """The lines as a stream; with `follow` until the job ends."""
    request = StreamLogsRequest(id=reference, follow=follow, cursor=cursor, **_conditions(choice))
    reading: Any = partial(LogDeduplicator, heartbeats=signs_of_life)
    call = STREAM_LOGS.call(request, reading)._replace(binary=best_format())
    if follow:
        return call
    asked = (*call.params, ("follow", "false"))
    return call._replace(params=asked, patience_s=_HISTORY_PATIENCE_S)


def undecoded(call: StreamCall[LogRecord]) -> StreamCall[Any]:
    """The same stream with `LinesFrame` for lines, from servers that send blocks."""
    return call._replace(binary=best_format(is_decoding=False))


def list_streams(reference: str, *, attempt: int = 0) -> Call[LogStreams]:
    """List the streams of an attempt."""
    return LIST_LOG_STREAMS.call(LogStreamsRequest(id=reference, attempt=attempt))


def raw_logs(
    reference: str,
    *,
    node: str,
    stream: str = "stdout",
    source: str = "batch",
    attempt: int = 0,
    offset: int = 0,
) -> BytesCall:
    """The bytes of one stream."""
    asked = params(node=node, stream=stream, source=source, attempt=attempt or None, offset=offset)
    return BytesCall(f"{_path(reference)}/logs/raw", asked)


def job_end(reference: str) -> Call[JobEndCard]:
    """How the job ended, if it has."""
    return Call("GET", _path(reference), JobEndCard)


def _path(reference: str) -> str:
    return f"{PREFIX}/allocations/{quote(checked_reference(reference), safe='')}"


def _conditions(choice: LogChoice) -> dict[str, Any]:
    """The fields of a request that a choice sets. Raises `UsageError`."""
    given: dict[str, Any] = {name: value for name, value in choice.items() if value is not None}
    stream = choice.get("stream")
    return given | {
        "stream": (one_of(LogKind, stream, "stream"),) if stream else (),
        "nodes": tuple(choice.get("nodes") or ()),
        "ranks": tuple(choice.get("ranks") or ()),
    }


SDK: Mapping[str, Callable[..., object]] = {
    "read_logs": read_logs,
    "logs": stream_logs,
    "log_streams": list_streams,
    "log_bytes": raw_logs,
}
"""The functions of the SDK by name."""
