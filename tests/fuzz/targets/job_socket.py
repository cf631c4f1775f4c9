"""A line that a job writes to its agent's socket: one bounded printable event, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lattice.base.errors import UsageError
from lattice.base.strictjson import read_json
from lattice.domain.run_events import LONGEST_NAME, LONGEST_TEXT, MOST_ATTRIBUTES, RunEventKind
from lattice.features.identity.node.job_events import reported_event
from lattice.features.telemetry.convert.run_events import events_message
from lattice.features.telemetry.node.events import MOST_BYTES, RunEvents

TOKENS = tuple(
    each.encode()
    for each in (
        *('{"event": {', '"text": "x"', '"name": "epoch"', '"attributes": {', '"a": 1', "}", ","),
        *('"a": 0.5', '"a": true', '"a": null', '"a": [', "1e999", "-1", "9" * 30, '"\\ud800"'),
        *('"\\u001b[2J"', '"\\u202e"', '"ask": "self"', '"job": 13', "\n", "[", '"'),
    )
)


def seeds() -> Iterator[bytes]:
    """Whole events, and what a job might try instead."""
    for event in (
        {"text": "epoch 3 done"},
        {"text": "epoch 3 done", "name": "epoch", "attributes": {"loss": 0.31, "best": True}},
        {"text": "x" * 501},
        {"text": "two\nlines"},
        {"text": "\x1b]52;c;x\x07"},
        {"text": "\ud800"},
        {"text": "\u202egnp.exe"},
        {"text": "x", "attributes": {str(each): each for each in range(17)}},
        {"text": "x", "attributes": {"a": 1 << 70}},
        {"text": "x", "job": 13},
        {"text": ["x"]},
        [],
    ):
        yield json.dumps({"event": event}).encode()
    yield b'{"event": {"text": "x", "text": "y"}}'
    yield b""


def try_one(data: bytes) -> None:
    """The bytes are one line."""
    try:
        asked = read_json(data)
        event = reported_event(asked.get("event") if isinstance(asked, dict) else asked, 1.8e9)
    except (ValueError, UsageError):
        return
    assert event.kind is RunEventKind.JOB
    assert 1 <= len(event.text) <= LONGEST_TEXT
    assert len(event.name) <= LONGEST_NAME
    assert len(event.attributes) <= MOST_ATTRIBUTES
    texts = (event.text, event.name, *(text for pair in event.attributes for text in pair))
    assert all(each.isprintable() for each in texts)
    kept = RunEvents()
    kept.report(event)
    assert kept.size_bytes <= MOST_BYTES
    assert events_message(()).ByteSize() < MOST_BYTES
