"""What a command is given to work with: a server to ask, a place to write, a clock.

The program's shell makes the real one; tests make their own. Commands know only this, so they
import neither the SDK nor any adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.clock import Clock
from lattice.base.style import Style

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Followed(Protocol[T_co]):
    """The records of a stream as they come, and where to go on after those that were taken."""

    @property
    def cursor(self) -> str: ...
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[T_co]: ...


class Fetched(Protocol):
    """Bytes as they come, and where they end as far as is known."""

    @property
    def end(self) -> int | None: ...
    def __iter__(self) -> Iterator[bytes]: ...


class Shell(Protocol):
    """The surroundings of one run of a command."""

    @property
    def style(self) -> Style:
        """How text may look."""

    @property
    def output(self) -> str:
        """One of `table`, `wide`, `json`, `yaml`."""

    @property
    def clock(self) -> Clock:
        """The time."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables."""

    @property
    def live(self) -> bool:
        """True if standard output is a terminal that can be repainted."""

    @property
    def interactive(self) -> bool:
        """True if a person can be asked."""

    def call(self, call: Call[T], *, anonymous: bool = False) -> T:
        """Ask the server; `anonymous` sends no token and needs none."""

    def stream(self, call: StreamCall[T]) -> Followed[T]:
        """Follow a stream of the server's."""

    def fetch(self, call: BytesCall) -> Fetched:
        """Get the bytes of something."""

    def attach(self, call: TerminalCall) -> int:
        """Be the terminal, or the pipes, of what runs in a job; its exit code."""

    def reference(self, word: str | None) -> str:
        """The allocation a word means: an id, `@last`, a name; without one, that of this job."""

    def page(self, texts: Iterable[str]) -> None:
        """Data that may be longer than the screen: through a pager if it is."""

    def write(self, text: str) -> None:
        """Data, to standard output, at once."""

    def note(self, text: str) -> None:
        """A line about what goes on, to standard error; silent with `-q`."""

    def warn(self, text: str) -> None:
        """A line people must see even with `-q`."""

    def document(self, answer: object) -> None:
        """An answer as the JSON or YAML document that was asked for."""

    def record(self, answer: object) -> None:
        """An answer as one line of JSON."""

    def ask(self, prompt: str) -> str:
        """One line from the person; raises UsageError where there is none to ask."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def later(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` then, in a thread of its own; what is answered takes it back."""

    def keys(self, act: Callable[[str], None]) -> Callable[[], None]:
        """Call `act` with each key that is typed, in a thread of its own.

        What is answered ends that. Only where a person can be asked.
        """
