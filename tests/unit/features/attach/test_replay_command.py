"""`lattice replay`: which session it plays."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.base.errors import LatticeError, NotFound, UsageError
from lattice.base.fast_start import argv
from lattice.domain.recording import Anchor, anchor_text
from lattice.features.attach.command.replay import REPLAY
from tests.fakes.shell import COMMON_OPTIONS, FakeShell

ONE, TWO = "a" * 32, "b" * 32
ENDS = "/v1/audit/logs"


def run(shell: FakeShell, *words: str) -> int:
    values = argv.read(REPLAY, words)
    assert values is not None, words
    for common in COMMON_OPTIONS:
        values.pop(common)
    return REPLAY.run(shell, **values)


def part(session: str) -> dict[str, Any]:
    return {
        "session": session, "allocation": "42@1", "user": "alice", "node": "n1", "begin": 0,
        "begin_us": 0, "lines": "", "next": 0, "closed": True, "reason": "exited",
    }  # fmt: skip


def end(detail: str) -> dict[str, Any]:
    return {
        "time": "2026-11-15T13:58:11Z", "event": "e", "user": "alice", "node": "n1",
        "detail": detail, "sequence": 7,
    }  # fmt: skip


def recorded(session: str) -> dict[str, Any]:
    return end(anchor_text(session, Anchor(3, bytes(32)), "exited", account="theory"))


def shell_of(*pages: list[dict[str, Any]]) -> FakeShell:
    left = list(pages)

    def page() -> dict[str, Any] | LatticeError:
        rows = left.pop(0)
        return {"rows": rows, "cursor": "9" if left else "", "searched_to": None}

    routes = {f"/v1/recordings/{each}": part(each) for each in (ONE, TWO)}
    return FakeShell({**routes, ENDS: page})


@pytest.mark.parametrize("name", ["42", "42_7", "42@1772366400"])
def test_the_only_recorded_session_of_an_allocation_is_played(name: str) -> None:
    shell = shell_of([end("session x on n1: exited")], [recorded(ONE), recorded(ONE)])
    assert run(shell, name) == 0
    assert [each.path for each in shell.calls] == [ENDS, ENDS, f"/v1/recordings/{ONE}"]
    assert ("allocation", name) in shell.calls[0].params
    assert ("cursor", "9") in shell.calls[1].params


def test_of_several_sessions_one_has_to_be_named() -> None:
    shell = shell_of([recorded(ONE), recorded(TWO)])
    with pytest.raises(UsageError, match="42 has 2 recordings"):
        run(shell, "42")
    assert shell.out == (
        f"{ONE}  alice on n1, ended 13:58:11Z\n{TWO}  alice on n1, ended 13:58:11Z\n"
    )


def test_a_session_is_played_without_a_question() -> None:
    shell = shell_of()
    assert run(shell, TWO) == 0
    assert len(shell.calls) == 1


def test_what_has_no_recording_is_not_found() -> None:
    with pytest.raises(NotFound, match="no recording of 42"):
        run(shell_of([]), "42")
    for name in ("../x", "a" * 31, "0", ""):
        with pytest.raises(UsageError, match="neither a session nor an allocation"):
            run(shell_of([]), name)
