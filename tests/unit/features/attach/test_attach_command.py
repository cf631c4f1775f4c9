"""`lattice attach`, `lattice session` and `lattice sessions`: from words to calls and lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from lattice.base.command import Command
from lattice.base.errors import JobEnded, LatticeError, NotFound, Unavailable, UsageError
from lattice.base.fast_start import argv
from lattice.features.attach.command.attach import ATTACH
from lattice.features.attach.command.session import SESSION, SESSIONS
from tests.fakes.shell import COMMON_OPTIONS, FakeShell

CARD = "/v1/allocations/42"


def run(command: Command, shell: FakeShell, *words: str) -> int:
    values = argv.read(command, words)
    assert values is not None
    return command.run(
        shell, **{name: value for name, value in values.items() if name not in COMMON_OPTIONS}
    )


def card(state: str = "running", **changes: Any) -> dict[str, Any]:
    told = {"id": "42", "state": state, "nodes": "n1", "node_count": 1} | changes
    return {"allocation": told, "sources": [], "siblings": []}


@pytest.mark.spec("ATTACH-1")
def test_without_a_terminal_nothing_is_asked_and_the_first_node_taken() -> None:
    shell = FakeShell({})
    shell.attaching = lambda: 7
    assert run(ATTACH, shell, "42") == 7
    (call,) = shell.attached
    assert (call.path, call.node, call.rank, call.command) == (f"{CARD}/attach", "", None, ())
    assert shell.calls == []


@pytest.mark.spec("ATTACH-1", "ALLOC-5")
def test_options_are_passed_on() -> None:
    shell = FakeShell({})
    run(ATTACH, shell, "42_7", "--node", "n2", "--tools-uenv", "/img.squashfs", "--", "ls", "-l")
    run(ATTACH, shell, "42", "--rank", "3", "--command", "echo $HOME")
    first, second = shell.attached
    assert first.path == "/v1/allocations/42_7/attach"
    assert (first.node, first.tools, first.command) == ("n2", "/img.squashfs", ("ls", "-l"))
    assert (second.rank, second.command) == (3, ("/bin/sh", "-c", "echo $HOME"))


@pytest.mark.parametrize(
    "words",
    [("42", "-c", "x", "--", "y"), ("42", "-n", "n1", "--rank", "0")],
)
def test_what_contradicts_itself_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        run(ATTACH, FakeShell({}), *words)


def person(routes: dict[str, Any], *typed: str) -> FakeShell:
    shell = FakeShell(routes, live=True)
    shell.interactive = True
    shell.typed = list(typed)
    return shell


@pytest.mark.spec("ATTACH-1")
@pytest.mark.parametrize(
    ("typed", "node"),
    [
        ([""], "n1"),
        (["n12"], "n12"),
        (["2"], "n12"),
        (["1", ""], "n1"),
        (["nothing", "12"], "n12"),
        (["1", "n11"], "n11"),
    ],
)
def test_of_many_nodes_one_is_picked(typed: list[str], node: str) -> None:
    shell = person({CARD: card(nodes="n[1,10-12]", node_count=4)}, *typed)
    run(ATTACH, shell, "42")
    assert shell.attached[0].node == node
    assert shell.typed == []


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (card(), ("42",)),
        (card("pending", nodes="", node_count=2), ("42",)),
        (card(nodes="n[1-2]", node_count=2), ("42", "-n", "n2")),
        (card(nodes="n[1-2]", node_count=2), ("42", "--rank", "1")),
    ],
)
def test_where_there_is_nothing_to_choose_nobody_is_asked(
    told: dict[str, Any], words: tuple[str, ...]
) -> None:
    shell = person({CARD: told})
    run(ATTACH, shell, *words)
    assert len(shell.attached) == 1


def record(**changes: Any) -> dict[str, Any]:
    return {
        "id": "0" * 32,
        "user": "alice",
        "subject": "alice@site",
        "allocation": "42@1794000000",
        "attempt": 1,
        "node": "n1",
        "command": [],
        "terminal": True,
        "started": "2026-11-15T14:00:00Z",
        "ended": None,
        "reason": None,
        "exit_code": None,
    } | changes


@pytest.mark.spec("ATTACH-9")
def test_sessions_are_listed() -> None:
    closed = record(
        ended="2026-11-15T14:01:00Z", reason="exited", exit_code=3, command=["top", "-b"]
    )
    shell = FakeShell({"/v1/attach/sessions": {"sessions": [record(), closed], "more": True}})
    assert run(SESSIONS, shell, "--all") == 0
    heading, first, second = shell.out.splitlines()
    assert " ".join(heading.split()) == "ALLOCATION NODE USER STARTED TIME END COMMAND"
    assert " ".join(first.split()) == "42 n1 alice 14:00:00Z 00:02:11 open login shell"
    assert " ".join(second.split()) == "42 n1 alice 14:00:00Z 00:01:00 exited 3 top -b"
    assert shell.notes == ["Older ones are left out."]
    assert shell.calls[0].params == ()
    run(SESSIONS, shell, "42")
    assert dict(shell.calls[-1].params) == {"allocation": "42", "open": "true"}


def test_sessions_as_a_document_and_none() -> None:
    shell = FakeShell({"/v1/attach/sessions": {"sessions": [record()]}}, output="json")
    run(SESSIONS, shell)
    assert json.loads(shell.out)["sessions"][0]["node"] == "n1"
    empty = FakeShell({"/v1/attach/sessions": {"sessions": []}})
    run(SESSIONS, empty)
    assert empty.out == ""
    assert empty.notes == ["No session is open."]


def waiting(*states: Any) -> Callable[[], Any]:
    left = list(states)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def cluster(*states: Any) -> FakeShell:
    return FakeShell(
        {
            "/v1/allocations": {"id": "42", "job_id": 42, "notes": ["sbatch: a word"]},
            CARD: waiting(*states),
            f"{CARD}/cancel": {"id": "42", "cancelling": True, "state": "running"},
        }
    )


def paths(shell: FakeShell) -> list[str]:
    return [f"{call.method} {call.path}" for call in shell.calls]


@pytest.mark.spec("ALLOC-8")
def test_a_session_waits_attaches_and_leaves_nothing_behind() -> None:
    reason = {"code": "Resources", "words": "waiting for enough free resources"}
    shell = cluster(card("pending", reason=reason), card("configuring"), card())
    shell.attaching = lambda: 5
    assert run(SESSION, shell, "-G", "1", "-t", "1h", "--sbatch", "-p gpu", "--", "bash") == 5
    asked = json.loads(shell.calls[0].body or b"")
    assert asked["gpus"] == "1"
    assert asked["walltime"] == "1h"
    assert asked["options"] == ["-p", "gpu"]
    assert "sleep infinity" in asked["script"]
    assert shell.calls[0].repeatable
    assert shell.attached[0].command == ("bash",)
    assert paths(shell)[-1] == f"POST {CARD}/cancel"
    assert shell.notes == [
        "Submitted allocation 42",
        "sbatch: a word",
        "42 is pending: waiting for enough free resources (Resources)",
        "42 is configuring",
        "42 runs, after 00:00:00",
        "Cancelling allocation 42",
    ]


@pytest.mark.spec("ALLOC-8")
def test_kept_it_stays() -> None:
    shell = cluster(card())
    run(SESSION, shell, "--keep")
    assert f"POST {CARD}/cancel" not in paths(shell)
    assert "lattice attach 42" in shell.notes[-1]


@pytest.mark.spec("ALLOC-8")
def test_an_interrupt_while_waiting_cancels_it() -> None:
    shell = cluster(card("pending"))
    shell.longest_s = 5.0
    with pytest.raises(KeyboardInterrupt):
        run(SESSION, shell)
    assert paths(shell)[-1] == f"POST {CARD}/cancel"
    assert shell.attached == []


@pytest.mark.spec("ALLOC-8")
@pytest.mark.parametrize("error", [Unavailable("no way"), NotFound("gone")])
def test_what_can_not_be_cancelled_is_said_to_go_on(error: LatticeError) -> None:
    shell = cluster(card())
    shell.routes = {**shell.routes, f"{CARD}/cancel": error}
    assert run(SESSION, shell) == 0
    assert "goes on" in shell.warnings[-1]
    assert "lattice cancel 42" in shell.warnings[-1]


def test_a_job_that_ends_first_is_not_cancelled() -> None:
    shell = cluster(card("pending"), card("failed"))
    with pytest.raises(JobEnded, match="failed"):
        run(SESSION, shell)
    assert f"POST {CARD}/cancel" not in paths(shell)


def test_a_server_that_is_away_is_waited_for() -> None:
    shell = cluster(Unavailable("away"), Unavailable("away"), card())
    assert run(SESSION, shell) == 0
    assert shell.warnings == ["away; still waiting."]
