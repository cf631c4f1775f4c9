"""`lattice admin drain|undrain|disable|enable` and the agent's side of `lattice nodes`, as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.errors import UsageError
from lattice.base.text import cells
from lattice.features.nodes.command import DISABLE, ENABLE, UNDRAIN, drain, nodes
from tests.fakes import answers
from tests.fakes.shell import FakeShell

PATH = "/v1/nodes/n%5B1-2%5D/"


def outcome(name: str, state: str, *, before: str = "ready", changed: bool = True) -> Any:
    return {"name": name, "before": before, "state": state, "changed": changed}


def shell(act: str, *found: Any, **more: Any) -> FakeShell:
    return FakeShell({PATH + act: {"nodes": list(found)}, **more})


@pytest.mark.spec("OPS-4")
def test_drain_says_what_became_of_each_and_how_to_take_it_back() -> None:
    at = shell("drain", outcome("n1", "drained"), outcome("n2", "draining"))
    code = drain(at, node=("n1", "n2"), reason="bad DIMM", wait=False, timeout=None)
    assert code == 0
    assert at.out.splitlines() == ["n1  ○ drained", "n2  ◐ draining  (work still runs there)"]
    assert at.notes == ["To take it back once drained: lattice admin undrain n[1-2]"]
    call = at.calls[0]
    assert (call.method, call.repeatable) == ("POST", True)
    assert json.loads(call.body or b"") == {"reason": "bad DIMM"}


@pytest.mark.spec("OPS-4")
def test_what_was_so_already_says_so() -> None:
    at = shell("drain", outcome("n1", "drained", changed=False), outcome("n2", "drained"))
    drain(at, node=("n[1-2]",), reason="x", wait=False, timeout=None)
    assert at.out.splitlines()[0] == "n1  ○ drained  (already; nothing was changed)"
    assert at.notes == ["To take it back: lattice admin undrain n2"]


@pytest.mark.spec("OPS-4")
@pytest.mark.parametrize(
    ("verb", "act", "state"),
    [(UNDRAIN, "undrain", "ready"), (DISABLE, "disable", "down"), (ENABLE, "enable", "ready")],
)
def test_the_other_three(verb: Any, act: str, state: str) -> None:
    at = shell(act, outcome("n1", state), outcome("n2", state))
    assert verb.run(at, node=("n[1-2]",), reason=None) == 0
    assert at.out.count(state) == 2


@pytest.mark.spec("OPS-4")
def test_wait_returns_when_all_are_drained() -> None:
    looks = iter(["ready", "draining", "draining", "drained"])

    def listing() -> dict[str, Any]:
        state = next(looks)
        found = [answers.node("n1", state="drained"), answers.node("n2", state=state)]
        return {"nodes": found, "sources": []}

    at = shell("drain", outcome("n1", "drained"), outcome("n2", "draining"))
    at.routes = {**at.routes, "/v1/nodes": listing}
    assert drain(at, node=("n[1-2]",), reason="x", wait=True, timeout=None) == 0
    assert at.notes[1:] == ["n1 is drained.", "n2 is drained."]


def test_wait_gives_up_in_time() -> None:
    found = {"nodes": [answers.node("n2", state="draining")], "sources": []}
    at = shell("drain", outcome("n1", "drained"), outcome("n2", "draining"))
    at.routes = {**at.routes, "/v1/nodes": found}
    assert drain(at, node=("n[1-2]",), reason="x", wait=True, timeout=60) == 1
    assert at.clock.passed_s == 60
    assert at.warnings[-1].startswith("Not drained in time")


def test_mistakes_are_named_before_anything_is_asked() -> None:
    at = shell("drain")
    with pytest.raises(UsageError):
        drain(at, node=("n[",), reason="x", wait=False, timeout=None)
    with pytest.raises(UsageError, match="--wait"):
        drain(at, node=("n1",), reason="x", wait=False, timeout=5)
    assert at.calls == []


def agent(**changes: Any) -> dict[str, Any]:
    told = {
        "link": "linked",
        "condition": "ready",
        "replica": "server-1",
        "since": "2026-11-15T14:01:29Z",
        "version": "0.1.0",
    }
    return told | changes


def listed(*found: dict[str, Any], width: int | None = None) -> FakeShell:
    at = FakeShell({"/v1/nodes": {"nodes": list(found), "sources": []}}, width=width)
    nodes(at, name=None, state=(), partition=None, by=None)
    return at


@pytest.mark.spec("OPS-4")
def test_both_truths_are_shown() -> None:
    text = listed(
        answers.node("n1", agent=agent()),
        answers.node("n2", state="degraded", agent=agent(link="lost", condition="degraded")),
        answers.node("n3", agent=agent(link="never seen", since=None, replica="")),
    ).out
    head, *rows = text.splitlines()
    assert "AGENT" in head
    assert "linked to server-1" in rows[0]
    assert "◍ degraded" in rows[1]
    assert "lost 42 s" in rows[1]
    assert "never seen" in rows[2]


def test_a_cluster_without_agents_has_no_word_about_them() -> None:
    assert "AGENT" not in listed(answers.node("n1"), answers.node("n2", agent=None)).out


def test_the_agent_fits_on_80_columns() -> None:
    text = listed(
        answers.node("n1", agent=agent(replica="server-with-a-long-name-1a2b3c4d")), width=80
    ).out
    assert all(cells(line) <= 80 for line in text.splitlines())


def test_card_tells_of_the_agent() -> None:
    card = {"node": answers.node(agent=agent()), "sources": [], "allocations": []}
    at = FakeShell({"/v1/nodes/n1": card})
    nodes(at, name="n1", state=(), partition=None, by=None)
    words = "linked to server-1, since 14:01:29Z, version 0.1.0"
    assert any(line.split(maxsplit=1) == ["Agent", words] for line in at.out.splitlines())


def test_hostile_words_of_an_agent_are_inert() -> None:
    """Attack 16."""
    evil = "x\x1b[2J\u202e\r\n"
    told = agent(replica=evil, version=evil)
    assert all(line.isprintable() for line in listed(answers.node(agent=told)).out.split("\n"))
