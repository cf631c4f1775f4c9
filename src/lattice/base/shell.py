"""What a command works with: a server, an output, a clock.

The program makes the real shell, and tests make their own. Commands use only this interface, so
they import neither the SDK nor any adapter.
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
    """The records of a stream, and the cursor after those that were read."""

    @property
    def cursor(self) -> str: ...
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[T_co]: ...


class Fetched(Protocol):
    """The bytes of something, and the offset of their end as far as known."""

    @property
    def end(self) -> int | None: ...
    def __iter__(self) -> Iterator[bytes]: ...


class CallRunner(Protocol):
    """Carries out calls without a server."""

    def call(self, call: Call[T]) -> T: ...
    def stream(self, call: StreamCall[T]) -> Followed[T]: ...
    def fetch(self, call: BytesCall) -> Fetched: ...
    def close(self) -> None: ...


class Shell(Protocol):
    """The environment of one run of a command."""

    @property
    def style(self) -> Style:
        """Width, colour, glyphs and time zone of the output."""

    @property
    def output(self) -> str:
        """One of `table`, `wide`, `json`, `yaml`."""

    @property
    def clock(self) -> Clock:
        """The clock; tests replace it."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables."""

    @property
    def live(self) -> bool:
        """True if standard output is a terminal that can be repainted."""

    @property
    def interactive(self) -> bool:
        """True if a person can answer questions."""

    def call(self, call: Call[T]) -> T:
        """Make the call and return the answer."""

    def stream(self, call: StreamCall[T]) -> Followed[T]:
        """Follow a stream of the server."""

    def fetch(self, call: BytesCall) -> Fetched:
        """Fetch the bytes of something."""

    def attach(self, call: TerminalCall) -> int:
        """Connect the terminal or the pipes to a program in a job. Returns its exit code."""

    def reference(self, word: str | None) -> str:
        """The allocation that a word means: an id, `@last`, a name; None: that of this job."""

    def page(self, texts: Iterable[str]) -> None:
        """Write data that may be longer than the screen, through a pager if it is."""

    def write(self, text: str) -> None:
        """Write data to standard output at once."""

    def write_secretly(self) -> None:
        """What follows is secret: a file that standard output goes to is for its owner alone."""

    def write_bytes(self, text: bytes) -> None:
        """Write ASCII text to standard output at once."""

    def note(self, text: str) -> None:
        """Write a line about progress to standard error; silent with `-q`."""

    def warn(self, text: str) -> None:
        """Write a line that people must see even with `-q`."""

    def document(self, answer: object) -> None:
        """Write an answer as a JSON or YAML document, as requested."""

    def record(self, answer: object) -> None:
        """Write an answer as one line of JSON."""

    def ask(self, prompt: str) -> str:
        """Ask the person for one line. Raises `UsageError` if nobody can be asked."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def later(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` after that time in another thread. Call the returned function to cancel."""

    def keys(self, act: Callable[[str], None]) -> Callable[[], None]:
        """Call `act` in another thread for each key that is typed.

        The returned function ends that. It works only if the shell is `interactive`.
        """
