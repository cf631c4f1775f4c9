"""A server's streams of logs, written by hand: blocks, gaps, notes, and the events they come as."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.fakes.web import Answer, Request

TIME = "2026-11-15T14:02:11.402Z"
ALIVE = b": alive\n\n"
END = b"event: end\ndata: {}\n\n"


def block(text: str, seq: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "type": "lines",
        "node": "n1",
        "stream": "stdout",
        "source": "batch",
        "seq": seq,
        "count": text.count("\n"),
        "offset": 0,
        "time": TIME,
        "text": text,
        "of_a_newer_server": 1,
    } | changes


def gap(**changes: Any) -> dict[str, Any]:
    return {
        "type": "gap",
        "node": "n2",
        "stream": "stdout",
        "source": "batch",
        "seq": 0,
        "offset": 0,
        "time": TIME,
        "cause": "truncated",
        "lost_bytes": 4100,
    } | changes


def note(kind: str, **changes: Any) -> dict[str, Any]:
    return {"type": "note", "kind": kind, "time": TIME} | changes


def event(record: dict[str, Any], cursor: str = "") -> bytes:
    """One event as the server writes it."""
    marked = f"id: {cursor}\n" if cursor else ""
    return f"event: {record['type']}\n{marked}data: {json.dumps(record)}\n\n".encode()


def events(records: Iterable[dict[str, Any]], *, every: int = 1) -> Iterator[bytes]:
    """Events whose ids are their numbers, on every so manieth one."""
    for number, record in enumerate(records, 1):
        yield event(record, str(number) if number % every == 0 else "")


def streamed(pieces: Iterable[bytes], *, cut: bool = False) -> Answer:
    return Answer(pieces=pieces, cut=cut, headers={"Content-Type": "text/event-stream"})


def serving(
    records: list[dict[str, Any]], *, every: int = 1, cuts: tuple[int, ...] = ()
) -> Callable[[Request], Answer]:
    """A route that goes on from the cursor; connection by connection it breaks after so many."""
    left = list(cuts)

    def answer(request: Request) -> Answer:
        begin = int(request.query.get("cursor", ["0"])[0])
        pieces = [
            event(record, str(number) if number % every == 0 else "")
            for number, record in enumerate(records, 1)
        ][begin:]
        if left:
            return streamed(pieces[: left.pop(0)], cut=True)
        return streamed([*pieces, END])

    return answer


def error_event(code: str, message: str) -> bytes:
    body = {"error": {"code": code, "message": message, "hint": "Do.", "request_id": "r-1"}}
    return f"event: error\ndata: {json.dumps(body)}\n\n".encode()


def streams(*facts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "allocation": "42@2026-11-15T13:00:00Z",
        "attempt": 1,
        "attempts": 1,
        "finished": True,
        "streams": list(facts or (stream(),)),
    } | changes


def stream(**changes: Any) -> dict[str, Any]:
    return {
        "node": "n1",
        "stream": "stdout",
        "source": "batch",
        "rank": None,
        "bytes": 6,
        "lines": 1,
        "first": TIME,
        "last": TIME,
        "path": "/home/alice/slurm-42.out",
    } | changes
