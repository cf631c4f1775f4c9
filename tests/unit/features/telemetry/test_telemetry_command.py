"""`lattice telemetry`: from words to calls, from answers to lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.errors import UsageError
from lattice.base.fast_start import argv
from lattice.features.telemetry.command import TELEMETRY
from tests.fakes.shell import COMMON_OPTIONS, FakeShell


def answer(**changes: Any) -> dict[str, Any]:
    return {
        "allocation": "42",
        "mode": "prod",
        "interval_s": 30.0,
        "until": None,
        "set_by": "",
        "debug_now": 0,
        "debug_most": 10,
        "readers": [],
    } | changes


def run(*words: str, told: dict[str, Any], output: str = "table") -> FakeShell:
    shell = FakeShell({"/v1/allocations/42/telemetry": told}, output=output)
    values = argv.read(TELEMETRY, words)
    assert values is not None, words
    given = {name: value for name, value in values.items() if name not in COMMON_OPTIONS}
    assert TELEMETRY.run(shell, **given) == 0
    return shell


DEBUG = {
    "mode": "debug",
    "interval_s": 1.0,
    "until": "2026-11-15T14:30:00Z",
    "set_by": "alice",
    "debug_now": 3,
}


@pytest.mark.spec("WATCH-3")
def test_the_usual_mode_is_told_as_such() -> None:
    shell = run("42", told=answer())
    assert shell.out == (
        "Allocation 42: prod, measured every 30 s\nThe usual mode of this cluster\n"
    )


@pytest.mark.spec("WATCH-3")
def test_debug_tells_who_switched_and_when_it_reverts() -> None:
    shell = run("--alloc", "42", told=answer(**DEBUG))
    first, second, third = shell.out.splitlines()
    assert first == "Allocation 42: debug, measured every second"
    assert second.startswith("Set by alice; reverts by itself at ")
    assert "(in " in second
    assert third == "3 of at most 10 allocations are in debug"


@pytest.mark.spec("WATCH-3")
def test_switching_says_what_was_done() -> None:
    shell = run("42", "--mode", "debug", "--duration", "30m", told=answer(**DEBUG))
    (call,) = shell.calls
    assert (call.method, call.path) == ("PUT", "/v1/allocations/42/telemetry")
    assert json.loads(call.body or b"") == {"mode": "debug", "duration_s": 1800}
    assert shell.out.startswith("Allocation 42 is measured every second (debug); reverts by itself")


@pytest.mark.spec("WATCH-3")
def test_audit_shows_who_looked() -> None:
    reader = {
        "allocation": "42@1794000000",
        "reader": "root\x1b[31m",
        "standing": "system admin",
        "first": "2026-11-15T12:00:00Z",
        "last": "2026-11-15T12:31:00Z",
        "reads": 2,
        "follows": 1,
        "downloads": 0,
    }
    told = answer(mode="audit", set_by="alice", readers=[reader])
    out = run("42", told=told).out
    assert "Set by alice, until it is switched" in out
    assert "system admin" in out
    assert "read 2×, followed 1×" in out
    assert "\x1b" not in out
    shell = run("42", told=answer(mode="audit", set_by="alice"))
    assert shell.notes == ["Nobody but the owner has looked at it; or you are not the owner."]


@pytest.mark.spec("CLI-1")
def test_json_is_the_answer() -> None:
    shell = run("42", told=answer(**DEBUG), output="json")
    assert json.loads(shell.out)["interval_s"] == 1.0


@pytest.mark.parametrize("words", [("42", "--duration", "5m"), ("42", "--alloc", "43")])
def test_what_makes_no_sense_is_said_before_anything_is_asked(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        run(*words, told=answer())
