"""`lattice` before a person, or between pipes, in the lab's login room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from lab.screen import Screen, screen
from tests.e2e.people import Person

PROMPT = r"[$#] $"


@contextmanager
def at(person: Person, *words: str, stored: bool = False) -> Iterator[Screen]:
    """The command in a terminal; with the person's stored sign-in where asked."""
    argv, environment = person.lab.sessions.argv(person.name, ["lattice", *words])
    with screen(argv, environment | ({} if stored else person.bearer)) as shown:
        yield shown


def piped(person: Person, *words: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command without one."""
    argv, environment = person.lab.sessions.argv(person.name, ["lattice", *words])
    return subprocess.run(
        argv,
        env={**environment, **person.bearer},
        input=text,
        capture_output=True,
        timeout=120,
        check=False,
    )
