from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.errors import NotFound, Unavailable
from lattice.features.allocations.command.wait import wait
from tests.fakes import answers
from tests.fakes.shell import FakeShell, Told

PATH = "/v1/allocations/1"
FULL = "/v1/allocations/1%401794747600"


def passing(*states: Any) -> dict[str, Told]:
    left = list(states)

    def told() -> Any:
        state = left.pop(0) if len(left) > 1 else left[0]
        return (
            state
            if isinstance(state, Exception)
            else answers.card(answers.allocation(1, state=state))
        )

    return {PATH: told, FULL: told}


def run(
    routes: dict[str, Told], *ids: str, shell: FakeShell | None = None, **values: Any
) -> tuple[int, FakeShell]:
    shell = shell or FakeShell({})
    shell.routes = routes
    asked = {"id": ids or ("1",), "timeout": None, "exit_status": False} | values
    return wait(shell, **asked), shell


def test_returns_when_it_is_over_and_tells_what_happened() -> None:
    code, shell = run(passing("pending", "pending", "running", "completed"))
    assert code == 0
    assert shell.out == ""
    assert [note.split("  ", 1)[1] for note in shell.notes] == [
        "1 train  ○ pending on n[1-2]",
        "1 train  pending → ● running on n[1-2]",
        "1 train  running → ✓ completed on n[1-2]",
    ]
    assert shell.clock.passed_s == 1 + 1.5 + 2.25


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("completed", 0),
        ("failed", 100),
        ("timeout", 100),
        ("node_fail", 100),
        ("out_of_memory", 100),
        ("preempted", 100),
        ("cancelled", 103),
        ("running", 101),
        ("requeued", 101),
    ],
)
def test_exit_status(state: str, code: int) -> None:
    assert run(passing(state), timeout=30, exit_status=True)[0] == code


@pytest.mark.spec("CLI-2")
def test_without_exit_status_a_failed_one_has_still_been_waited_for() -> None:
    assert run(passing("failed"))[0] == 0
    code, shell = run(passing("running"), timeout=30)
    assert code == 1
    assert shell.warnings == ["Not finished in time: 1."]


def test_timeout_is_kept_to_the_second() -> None:
    _, shell = run(passing("running"), timeout=10)
    assert shell.clock.passed_s == 10


@pytest.mark.spec("CLI-2", "AUTH-12")
def test_not_there_is_said_at_once() -> None:
    with pytest.raises(NotFound):
        run({}, "99")


def test_several_are_all_waited_for() -> None:
    routes = passing("running", "completed")
    other = answers.card(answers.allocation(2, state="failed"))
    routes |= {"/v1/allocations/2": other}
    code, shell = run(routes, "1", "2", exit_status=True)
    assert code == 100
    assert len(shell.notes) == 3


def test_bare_id_of_an_array_means_every_task() -> None:
    done, going = answers.task(1, "completed"), answers.task(2, "running")
    ended = answers.card(answers.task(2, "cancelled"))
    routes: dict[str, Told] = {
        "/v1/allocations/42": answers.card(done, siblings=[going]),
        "/v1/allocations/42_2%401794747600": ended,
    }
    assert run(routes, "42", exit_status=True)[0] == 103
    routes["/v1/allocations/42_1"] = answers.card(done, siblings=[going])
    assert run(routes, "42_1", exit_status=True)[0] == 0, "one task means that task"


def test_a_server_away_for_a_while_does_not_end_the_waiting() -> None:
    code, shell = run(passing("running", Unavailable("gone"), Unavailable("gone"), "completed"))
    assert code == 0
    assert shell.warnings == ["gone; still waiting.", "The server answers again."]


@pytest.mark.spec("CLI-2")
def test_a_server_away_for_good_does() -> None:
    with pytest.raises(Unavailable):
        run(passing("running", Unavailable("gone")))


def test_json_gives_the_end_states() -> None:
    shell = FakeShell({}, output="json")
    _, shell = run(passing("completed"), shell=shell)
    assert [each["state"] for each in json.loads(shell.out)] == ["completed"]
