"""A call to the server, described but not made.

Each feature's `api.py` turns its verbs into calls; the SDK makes them, through its asynchronous
or its blocking door. So a verb is written once, and neither door can drift from the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

IDEMPOTENCY_KEY = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request: its answer is JSON that reads as the dataclass `answer`."""

    method: str
    path: str
    answer: type[T]
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """A JSON document."""
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    """Where an answer may take longer than others."""

    @property
    def repeatable(self) -> bool:
        """True if asking twice is the same as asking once."""
        return self.method == "GET" or any(name == IDEMPOTENCY_KEY for name, _ in self.headers)


def params(**values: str | int | bool | tuple[str, ...] | None) -> tuple[tuple[str, str], ...]:
    """Query parameters: `None`, empty and False are left out, tuples repeat their name."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if value is None or value is False or value in {"", ()}:
            continue
        if isinstance(value, tuple):
            pairs.extend((name, each) for each in value)
        else:
            pairs.append((name, "true" if value is True else str(value)))
    return tuple(pairs)
