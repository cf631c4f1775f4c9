"""A shell for commands under test: answers from a table of JSON, a clock that only moves when
something sleeps, and everything written kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from lattice.base.call import Call
from lattice.base.errors import LatticeError, NotFound
from lattice.base.style import Style
from lattice.client.decode import decode
from lattice.features.allocations.command.options import resolve

T = TypeVar("T")

NOW = datetime(2026, 11, 15, 14, 2, 11, tzinfo=UTC)

Told = dict[str, Any] | LatticeError | Callable[[], "dict[str, Any] | LatticeError"]


class StillClock:
    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.passed_s)

    def monotonic(self) -> float:
        return self.passed_s


class FakeShell:
    def __init__(
        self,
        routes: Mapping[str, Told],
        *,
        output: str = "table",
        live: bool = False,
        width: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.routes = routes
        self.output = output
        self.live = live
        self.interactive = False
        self.environment = environment or {}
        self.clock = StillClock()
        self.style = Style(width=width, zone=UTC, wide=output == "wide")
        self.calls: list[Call[Any]] = []
        self.out = ""
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.typed: list[str] = []
        self.longest_s = 3600.0

    def call(self, call: Call[T], *, anonymous: bool = False) -> T:  # noqa: ARG002
        self.calls.append(call)
        told = self.routes.get(call.path, NotFound("not there"))
        told = told() if callable(told) else told
        if isinstance(told, LatticeError):
            raise told
        return decode(json.dumps(told).encode(), call.answer)

    def reference(self, word: str) -> str:
        return resolve(self, word)

    def write(self, text: str) -> None:
        self.out += text

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def document(self, answer: object) -> None:
        self.out += msgspec.json.encode(answer).decode()

    def record(self, answer: object) -> None:
        self.out += msgspec.json.encode(answer).decode() + "\n"

    def ask(self, prompt: str) -> str:  # noqa: ARG002
        return self.typed.pop(0)

    def sleep(self, seconds: float) -> None:
        self.clock.passed_s += seconds
        if self.clock.passed_s > self.longest_s:
            raise KeyboardInterrupt
