"""A call to the server, described but not made.

Each feature's `api.py` turns its verbs into calls; the SDK makes them, through its asynchronous
or its blocking door. So a verb is written once, and neither door can drift from the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request: its answer is JSON that reads as the dataclass `answer`."""

    method: str
    path: str
    answer: type[T]
    params: tuple[tuple[str, str], ...] = ()


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
