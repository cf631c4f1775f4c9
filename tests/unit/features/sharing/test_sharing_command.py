"""`lattice share` and `lattice unshare`: from words to calls, from answers to lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.command import Command
from lattice.base.errors import UsageError
from lattice.base.fast_start import argv
from lattice.features.sharing.command import SHARE, UNSHARE
from tests.fakes.shell import COMMON_OPTIONS, FakeShell


def share(user: str, **changes: Any) -> dict[str, Any]:
    return {
        "allocation": "42@1794000000",
        "owner": "alice",
        "user": user,
        "since": "2026-11-15T14:00:00Z",
        "until": "2026-11-22T14:00:00Z",
    } | changes


def reader(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "allocation": "42@1794000000",
        "reader": name,
        "standing": "tenant admin",
        "first": "2026-11-15T12:00:00Z",
        "last": "2026-11-15T12:31:00Z",
        "reads": 2,
        "follows": 1,
        "downloads": 0,
    } | changes


def sharing(*shares: dict[str, Any], readers: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"allocation": "42@1794000000", "shares": list(shares), "readers": list(readers)}


def run(command: Command, *words: str, answer: dict[str, Any], output: str = "table") -> FakeShell:
    routes = {f"/v1/allocations/42/{verb}": answer for verb in ("share", "unshare", "shares")}
    shell = FakeShell(routes, output=output)
    values = argv.read(command, words)
    assert values is not None, words
    given = {name: value for name, value in values.items() if name not in COMMON_OPTIONS}
    assert command.run(shell, **given) == 0
    return shell


@pytest.mark.spec("AUTH-7")
def test_shared_with_two_for_a_day() -> None:
    answer = sharing(share("bob"), share("carol"))
    shell = run(SHARE, "42", "--with", "bob", "--with", "carol", "--for", "1d", answer=answer)
    assert [json.loads(call.body or b"") for call in shell.calls] == [
        {"user": "bob", "duration_s": 86400},
        {"user": "carol", "duration_s": 86400},
    ]
    assert shell.out == (
        "Shared allocation 42 with bob until 2026-11-22 14:00:00Z\n"
        "Shared allocation 42 with carol until 2026-11-22 14:00:00Z\n"
    )


@pytest.mark.spec("AUTH-7")
def test_listed_with_readers() -> None:
    shell = run(SHARE, "42", answer=sharing(share("bob"), readers=(reader("carol"),)))
    assert [call.method for call in shell.calls] == ["GET"]
    assert "SHARED WITH" in shell.out
    assert "carol" in shell.out
    assert "tenant admin" in shell.out
    assert "read 2×, followed 1×" in shell.out


@pytest.mark.spec("AUTH-7")
def test_nothing_to_list_is_said_beside_the_data() -> None:
    shell = run(SHARE, "42", answer=sharing())
    assert shell.out == ""
    assert "Shared with nobody" in shell.notes[0]
    assert "Nobody but you" in shell.notes[1]


def test_names_cannot_act_on_the_terminal() -> None:
    hostile = sharing(share("b\x1b[31mob"), readers=(reader("c\x1b]0;x\x07"),))
    assert "\x1b" not in run(SHARE, "42", answer=hostile).out


@pytest.mark.spec("AUTH-7")
def test_unshared() -> None:
    shell = run(UNSHARE, "42", "--with", "bob", answer=sharing())
    assert json.loads(shell.calls[0].body or b"") == {"user": "bob"}
    assert shell.out == "Allocation 42 is no longer shared with bob\n"


@pytest.mark.parametrize(("command", "words"), [(SHARE, ("42", "--for", "1d")), (UNSHARE, ("42",))])
def test_with_whom_must_be_said(command: Command, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        run(command, *words, answer=sharing())
