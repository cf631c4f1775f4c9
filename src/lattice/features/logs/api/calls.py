"""The verbs as calls: a page, a stream, the streams there are, their bytes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TypedDict, Unpack
from urllib.parse import quote

from lattice.base.call import BytesCall, Call, StreamCall, params
from lattice.base.errors import UsageError
from lattice.domain.allocation import BadReference, parse_reference
from lattice.features.logs.api.reading import LogReading
from lattice.features.logs.model import (
    USUAL_PAGE_LINES,
    JobEndCard,
    LogBlock,
    LogGap,
    LogNote,
    LogPage,
    LogRecord,
    LogStreams,
)

KINDS: dict[str, type[LogRecord]] = {"lines": LogBlock, "gap": LogGap, "note": LogNote}
_HISTORY_PATIENCE_S = 60.0
_BEGINNING = ("tail", "offset")


class LogChoice(TypedDict, total=False):
    """Which lines: all of the newest attempt unless something is said."""

    attempt: int
    """From 1; 0 is the newest."""
    stream: str
    """`stdout` or `stderr`; empty is both."""
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    since: datetime | None
    until: datetime | None
    tail: int | None
    """The last so many lines; 0 is none of those there are."""
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
    """One page, with as many lines as were asked for however many answers that takes."""
    asked = (*_query(choice), *params(limit=limit or None, cursor=cursor, offset=offset))
    return Call(
        "GET",
        f"{_path(reference)}/logs",
        LogPage,
        asked,
        timeout_s=30.0,
        patience_s=_HISTORY_PATIENCE_S,
        parts=PARTS,
    )


class _PageParts:
    """A page for which there was much to search comes in parts."""

    def rest(self, call: Call[LogPage], answer: LogPage) -> Call[LogPage] | None:
        """From the cursor, until there are as many lines as the call wants."""
        wanted = int(dict(call.params).get("limit", USUAL_PAGE_LINES))
        lines = sum(each.count for each in answer.records if isinstance(each, LogBlock))
        if not answer.cursor or lines >= wanted:
            return None
        instead = {"limit", "cursor", *_BEGINNING}
        others = tuple(pair for pair in call.params if pair[0] not in instead)
        more = params(limit=wanted - lines, cursor=answer.cursor)
        return call._replace(params=(*others, *more))

    def joined(self, answer: LogPage, part: LogPage) -> LogPage:
        """Once what each part says anew: about the nodes, and of a gap where two parts meet."""
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
    """All of it as a stream; with `follow` it goes on until the job ends."""
    asked = (*_query(choice), ("follow", "true" if follow else "false"), *params(cursor=cursor))
    call = StreamCall(
        f"{_path(reference)}/logs/stream",
        KINDS,
        lambda: LogReading(signs_of_life=signs_of_life),
        asked,
        beginning=_BEGINNING,
    )
    return call if follow else call._replace(patience_s=_HISTORY_PATIENCE_S)


def list_streams(reference: str, *, attempt: int = 0) -> Call[LogStreams]:
    """Which streams there are."""
    return Call(
        "GET", f"{_path(reference)}/logs/streams", LogStreams, params(attempt=attempt or None)
    )


def raw_logs(
    reference: str,
    *,
    node: str,
    stream: str,
    source: str,
    attempt: int = 0,
    offset: int = 0,
) -> BytesCall:
    """The bytes of one of them."""
    asked = params(node=node, stream=stream, source=source, attempt=attempt or None, offset=offset)
    return BytesCall(f"{_path(reference)}/logs/raw", asked)


def job_end(reference: str) -> Call[JobEndCard]:
    """How the job ended, if it has."""
    return Call("GET", _path(reference), JobEndCard)


def _path(reference: str) -> str:
    try:
        name = str(parse_reference(reference))
    except BadReference as problem:
        hint = "Use 12345, 12345_7, 12345+1, or 12345@SUBMIT_TIME."
        raise UsageError(f"{problem}.", hint=hint) from None
    return f"/v1/allocations/{quote(name, safe='')}"


def _query(choice: LogChoice) -> tuple[tuple[str, str], ...]:
    since, until = choice.get("since"), choice.get("until")
    return params(
        attempt=choice.get("attempt") or None,
        stream=choice.get("stream", ""),
        node=choice.get("nodes", ()),
        rank=tuple(map(str, choice.get("ranks", ()))),
        since=since.isoformat() if since else None,
        until=until.isoformat() if until else None,
        tail=choice.get("tail"),
        grep=choice.get("grep", ""),
        exclude=choice.get("exclude", ""),
    )
