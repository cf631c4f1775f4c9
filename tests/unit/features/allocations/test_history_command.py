from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.errors import Unavailable, UsageError
from lattice.features.allocations.command.history import history, read_limit
from tests.fakes import answers
from tests.fakes.shell import FakeShell, Told
from tests.unit.features.allocations.test_status_command import ATTEMPTS

PATH = "/v1/history"


def run(told: Told, shell: FakeShell | None = None, **values: Any) -> FakeShell:
    shell = shell or FakeShell({})
    shell.routes = {PATH: told}
    asked = {"since": None, "until": None, "state": (), "user": None, "all": False, "limit": None}
    assert history(shell, **(asked | values)) == 0
    return shell


@pytest.mark.spec("ALLOC-6")
def test_says_when_and_how_each_ended_attempt_by_attempt() -> None:
    each = answers.allocation(attempt=2, attempts=ATTEMPTS, elapsed_s=None)
    done = answers.allocation(
        7,
        state="failed",
        ended="2026-11-15T13:40:00Z",
        elapsed_s=600,
        exit_code={"code": 1, "signal": 0},
    )
    assert run(answers.listing(each, done)).out.splitlines() == [
        "ID        NAME   STATE        STARTED    ENDED          TIME  NODES   EXIT",
        "12345 #1  train  ✗ node fail  13:01:00Z  13:20:00Z  00:19:00  n3      0:9",
        "12345 #2  train  ● running    13:30:00Z  —          00:32:11  n[1-2]  —",
        "7         train  ✗ failed     13:30:00Z  13:40:00Z  00:10:00  n[1-2]  1:0",
    ]


@pytest.mark.spec("ALLOC-6")
def test_times_and_choices_go_to_the_server() -> None:
    shell = run(
        answers.listing(), since="2h", until="14:00", state=(("failed",),), user="bob", limit=7
    )
    assert dict(shell.calls[0].params) == {
        "state": "failed",
        "user": "bob",
        "since": "2026-11-15T12:02:11+00:00",
        "until": "2026-11-15T14:00:00+00:00",
        "limit": "7",
    }
    assert shell.notes == ["No allocation in that time. Reach further back with --since 30d."]


def test_pages_are_followed_up_to_the_limit() -> None:
    pages = [
        answers.listing(answers.allocation(3), answers.allocation(2), next="p2"),
        answers.listing(answers.allocation(1), next="p3"),
    ]
    shell = run(lambda: pages.pop(0), limit=3)
    assert [dict(call.params).get("cursor") for call in shell.calls] == [None, "p2"]
    assert [dict(call.params)["limit"] for call in shell.calls] == ["3", "1"]
    assert len(shell.out.splitlines()) == 4
    assert shell.notes == ["These are the newest 3; there are more: raise --limit."]


def test_json_is_one_document_over_all_pages() -> None:
    pages = [
        answers.listing(answers.allocation(2), next="p2"),
        answers.listing(answers.allocation(1)),
    ]
    shell = run(lambda: pages.pop(0), FakeShell({}, output="json"))
    document = json.loads(shell.out)
    assert [each["id"] for each in document["allocations"]] == ["2", "1"]
    assert document["next"] is None


@pytest.mark.spec("ALLOC-7")
def test_slurmdbd_away_is_passed_on() -> None:
    with pytest.raises(Unavailable):
        run(Unavailable("slurmdbd does not answer"))


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="not before"):
        run(answers.listing(), since="1h", until="2h")
    with pytest.raises(UsageError, match="is not a time"):
        run(answers.listing(), since="soon")
    with pytest.raises(UsageError):
        read_limit("0")
    assert read_limit("20") == 20
