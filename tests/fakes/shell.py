"""A shell for commands under test: answers from a table of JSON, a clock that only moves when
something sleeps, and everything written kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.command import COMMON
from lattice.base.errors import LatticeError, NotFound
from lattice.base.fast_start.decode import decode
from lattice.base.style import Style
from lattice.features.allocations.command.options import resolve

T = TypeVar("T")

NOW = datetime(2026, 11, 15, 14, 2, 11, tzinfo=UTC)

COMMON_OPTIONS = frozenset(each.name for each in COMMON)
"""Those that a command's function is called without."""

Told = dict[str, Any] | LatticeError | Callable[[], "dict[str, Any] | LatticeError"]


class StillClock:
    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.passed_s)

    def monotonic(self) -> float:
        return self.passed_s


class FakeFollowed:
    """Records from a list; an error among them is raised in its turn."""

    def __init__(self, told: Iterable[Any], cursor: str = "") -> None:
        self._told = iter(told)
        self.cursor = cursor
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def __iter__(self) -> Iterator[Any]:
        for each in self._told:
            if isinstance(each, BaseException):
                raise each
            if callable(each):
                each()
                continue
            yield each


class FakeFetched:
    def __init__(self, body: bytes, pieces: int) -> None:
        self._body = body
        self._pieces = pieces
        self.end: int | None = None

    def __iter__(self) -> Iterator[bytes]:
        step = max(len(self._body) // self._pieces, 1)
        for at in range(0, len(self._body), step):
            yield self._body[at : at + step]


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
        self.server_url = "https://server"
        self.style = Style(width=width, zone=UTC, wide=output == "wide")
        self.calls: list[Call[Any]] = []
        self.out = ""
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.typed: list[str] = []
        self.paged = ""
        self.streamed: list[StreamCall[Any]] = []
        self.fetched: list[BytesCall] = []
        self.following = FakeFollowed([])
        self.bodies: dict[str, bytes] = {}
        self.attached: list[TerminalCall] = []
        self.attaching: Callable[[], int] = lambda: 0
        """What becomes of a terminal."""
        self.longest_s = 3600.0
        self.asked: list[tuple[float, Callable[[], None]]] = []
        """What is to be done later; `sleep` does it in its time."""
        self.listening: Callable[[str], None] | None = None
        """What hears the keys that are typed."""

    def call(self, call: Call[T]) -> T:
        self.calls.append(call)
        told = self.routes.get(call.path, NotFound("not there"))
        told = told() if callable(told) else told
        if isinstance(told, LatticeError):
            raise told
        return decode(json.dumps(told).encode(), call.answer)

    def stream(self, call: StreamCall[T]) -> FakeFollowed:
        self.streamed.append(call)
        return self.following

    def fetch(self, call: BytesCall) -> FakeFetched:
        self.fetched.append(call)
        asked = dict(call.params)
        name = f"{asked['node']}.{asked['source']}.{asked['stream']}"
        body = self.bodies[name][int(asked.get("offset", 0)) :]
        return FakeFetched(body, 3)

    def attach(self, call: TerminalCall) -> int:
        self.attached.append(call)
        return self.attaching()

    def reference(self, word: str | None) -> str:
        return resolve(self, word) if word else "42"

    def page(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.paged += text

    def write(self, text: str) -> None:
        self.out += text

    def write_secretly(self) -> None:
        return

    def write_bytes(self, text: bytes) -> None:
        self.out += text.decode("ascii")

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

    def later(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        asked = (self.clock.passed_s + seconds, act)
        self.asked.append(asked)

        def take_back() -> None:
            if asked in self.asked:
                self.asked.remove(asked)

        return take_back

    def keys(self, act: Callable[[str], None]) -> Callable[[], None]:
        self.listening = act

        def stop() -> None:
            self.listening = None

        return stop

    def sleep(self, seconds: float) -> None:
        self.clock.passed_s += seconds
        due = [each for each in self.asked if each[0] <= self.clock.passed_s]
        for each in due:
            self.asked.remove(each)
            each[1]()
        if self.clock.passed_s > self.longest_s:
            raise KeyboardInterrupt
