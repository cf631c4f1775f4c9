"""`lattice admin lock|unlock|locks`: from words to calls, from answers to lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.command import Command
from lattice.base.errors import UsageError
from lattice.base.fast_start import argv
from lattice.features.locks.command import LOCK, LOCKS, UNLOCK
from tests.fakes.shell import COMMON_OPTIONS, FakeShell


def lock(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "user",
        "target": "mallory",
        "reason": "stolen laptop",
        "by": "olga",
        "since": "2026-11-15T14:00:00Z",
        "until": None,
    } | changes


def run(command: Command, *words: str, locks: tuple[dict[str, Any], ...]) -> FakeShell:
    answer = {"locks": list(locks)}
    shell = FakeShell({"/v1/locks": answer, "/v1/locks/unlock": answer})
    values = argv.read(command, words)
    assert values is not None, words
    given = {name: value for name, value in values.items() if name not in COMMON_OPTIONS}
    assert command.run(shell, **given) == 0
    return shell


@pytest.mark.spec("AUTH-13")
def test_locked_for_a_day() -> None:
    made = lock(until="2026-11-16T14:00:00Z")
    words = ("user", "mallory", "--reason", "stolen laptop", "--for", "1d")
    shell = run(LOCK, *words, locks=(made,))
    assert json.loads(shell.calls[0].body or b"") == {
        "kind": "user",
        "target": "mallory",
        "reason": "stolen laptop",
        "duration_s": 86400,
    }
    assert shell.out == "Locked user mallory until 2026-11-16 14:00:00Z\n"


def test_everything_until_it_is_unlocked() -> None:
    shell = run(LOCK, "all", "--reason", "x", locks=(lock(kind="all", target=""),))
    assert shell.out == "Locked all until it is unlocked\n"


def test_a_lock_needs_a_reason() -> None:
    with pytest.raises(UsageError, match="reason"):
        run(LOCK, "user", "mallory", locks=())


def test_unlocked() -> None:
    assert run(UNLOCK, "user", "mallory", locks=(lock(),)).out == "Unlocked user mallory\n"


def test_the_list_shows_who_locked_what_and_why() -> None:
    shown = run(LOCKS, locks=(lock(), lock(kind="node", target="n3", by="\x1b]x"))).out
    assert "user mallory" in shown
    assert "stolen laptop" in shown
    assert "\x1b" not in shown


def test_nothing_is_locked() -> None:
    shell = run(LOCKS, locks=())
    assert shell.out == ""
    assert shell.notes == ["Nothing is locked."]
