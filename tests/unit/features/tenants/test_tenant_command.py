"""`lattice admin tenant`: from words to calls, from answers to lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.errors import UsageError
from lattice.base.fast_start import argv
from lattice.features.tenants.command import TENANT, read_limit
from tests.fakes.shell import FakeShell

OWN = {"act", "name", "max_nodes", "max_gpus", "max_jobs"}
SLURM = {"name": "slurmctld", "ok": True, "as_of": None, "age_s": 1.0, "error": None}
PAST = {"name": "slurmdbd", "ok": True, "as_of": None, "age_s": None, "error": None}


def tenant(**changes: Any) -> dict[str, Any]:
    return {
        "name": "physics",
        "limits": {"max_nodes": 4, "max_gpus": None, "max_jobs": 9},
        "use": {"nodes": 2, "gpus": 8, "running": 3, "pending": 1},
        "projects": 1,
        "users": 2,
        "admins": ["carol"],
    } | changes


def card(**changes: Any) -> dict[str, Any]:
    projects = [
        {"name": "physics", "parent": "", "users": [], "coordinators": ["carol"], "limits": None},
        {
            "name": "research",
            "parent": "physics",
            "users": ["alice", "b\x1bob"],
            "coordinators": [],
            "limits": {"max_nodes": 1, "max_gpus": 2, "max_jobs": None},
        },
    ]
    return {
        "tenant": tenant(**changes),
        "projects": projects,
        "enforced": True,
        "sources": [SLURM, PAST],
    }


def run(*words: str, answer: dict[str, Any] | None = None) -> FakeShell:
    listing = {"tenants": [tenant()], "enforced": True, "sources": [SLURM, PAST]}
    found = answer or card()
    shell = FakeShell(
        {"/v1/admin/tenants": listing, "/v1/admin/tenants/physics": found}
        if "create" not in words
        else {"/v1/admin/tenants": found}
    )
    values = argv.read(TENANT, words)
    assert values is not None, words
    given = {name: value for name, value in values.items() if name in OWN}
    assert TENANT.run(shell, **given) == 0
    return shell


@pytest.mark.spec("OPS-5")
def test_the_list_has_what_is_in_use_of_each_limit() -> None:
    assert run("list").out.splitlines() == [
        "TENANT   NODES  GPUS  RUNNING  PENDING  PROJECTS  USERS  ADMINS",
        "physics    2/4     8      3/9        1         1      2  carol",
    ]


@pytest.mark.spec("OPS-5")
def test_the_card_has_projects_and_users() -> None:
    out = run("show", "physics").out
    assert "2/4 in use" in out
    assert "3/9 running, 1 pending" in out
    assert "1 nodes, 2 GPUs" in out
    assert "alice" in out
    assert "\x1b" not in out


@pytest.mark.spec("OPS-5")
def test_what_is_given_is_sent_and_nothing_else() -> None:
    made = run("create", "physics", "--max-nodes", "4")
    assert made.calls[0].method == "POST"
    assert json.loads(made.calls[0].body or b"") == {"name": "physics", "max_nodes": 4}
    assert "sacctmgr add account" in made.notes[-1]
    changed = run("update", "physics", "--max-jobs", "none")
    assert changed.calls[1].method == "PUT"
    assert json.loads(changed.calls[1].body or b"") == {"max_jobs": -1}
    assert changed.notes == ["Nothing was changed."]


def test_limits_that_are_not_known_and_not_enforced_are_shown_so() -> None:
    answer = card(limits=None) | {"enforced": False}
    answer["sources"] = [SLURM, PAST | {"ok": False, "error": "gone"}]
    shell = run("show", "physics", answer=answer)
    assert "2/— in use" in shell.out
    assert any("AccountingStorageEnforce" in each for each in shell.warnings)
    assert any("slurmdbd does not answer" in each for each in shell.warnings)


@pytest.mark.parametrize(
    "words",
    [
        ("list", "physics"),
        ("show",),
        ("create",),
        ("update", "physics"),
        ("show", "physics", "--max-nodes", "1"),
    ],
)
def test_words_that_make_no_sense(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        run(*words)


@pytest.mark.parametrize("text", ["many", "-1", "99999999", "", "٣", "1.5"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(UsageError):
        read_limit(text)


def test_limits() -> None:
    assert (read_limit("0"), read_limit("10000000"), read_limit("none")) == (0, 10_000_000, -1)
