"""What a job reports of itself: one line of text, with a name and a few values. Pure, bounded.

It is untrusted. It is stored and shown as text of the job, and nothing is done with it.
"""

from __future__ import annotations

import math
from typing import Any

from lattice.base.errors import UsageError
from lattice.domain.run_events import (
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_ATTRIBUTES,
    RunEvent,
    RunEventKind,
)

EXAMPLE = '{"event": {"text": "epoch 3 done", "name": "epoch", "attributes": {"loss": 0.31}}}'
_LONGEST_VALUE = 200
_FIELDS = frozenset({"text", "name", "attributes"})


def reported_event(asked: Any, time: float) -> RunEvent:
    """The event in a question, at this time. Raises `UsageError`."""
    if not isinstance(asked, dict) or not asked.keys() <= _FIELDS:
        raise _refused("An event has a text, and may have a name and attributes.")
    attributes = asked.get("attributes", {})
    if not isinstance(attributes, dict) or len(attributes) > MOST_ATTRIBUTES:
        raise _refused(f"An event has at most {MOST_ATTRIBUTES} attributes, by name.")
    return RunEvent(
        kind=RunEventKind.JOB,
        time=time,
        name=_line(asked.get("name", ""), LONGEST_NAME, "The name", least=0),
        text=_line(asked.get("text", ""), LONGEST_TEXT, "The text"),
        attributes=tuple(
            (_line(name, LONGEST_NAME, "An attribute's name"), _value(value))
            for name, value in attributes.items()
        ),
    )


def _line(text: object, longest: int, what: str, *, least: int = 1) -> str:
    # Half of a surrogate pair is not printable, and no message could carry it.
    if isinstance(text, str) and least <= len(text) <= longest and (not text or text.isprintable()):
        return text
    raise _refused(f"{what} of an event is one printable line of {least} to {longest} characters.")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 1 << 63:
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return _line(value, _LONGEST_VALUE, "An attribute", least=0)


def _refused(text: str) -> UsageError:
    return UsageError(text, hint=EXAMPLE)
