"""`lattice admin claim|release|claims`: from words to calls, from answers to lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.command import Command
from lattice.base.errors import UsageError
from lattice.base.fast_start import argv
from lattice.features.claims.command import CLAIM, CLAIMS, RELEASE
from tests.fakes.shell import COMMON_OPTIONS, FakeShell

CARD = {
    "id": "3f2a9c01b7de",
    "user": "alice",
    "tenant": "physics",
    "nodes": "n[1-2]",
    "step": "claimed",
    "since": "2026-11-15T14:00:00Z",
    "reason": "trial 7",
    "reservation": "lattice-claim-3f2a9c01b7de",
}


def run(command: Command, *words: str, card: dict[str, Any] | None = CARD) -> FakeShell:
    answer = {"claim": card, "changed": True}
    listed = {"claims": [card] if card else []}
    shell = FakeShell(
        {"/v1/claims/release": answer, "/v1/claims": listed if command is CLAIMS else answer}
    )
    values = argv.read(command, words)
    assert values is not None, words
    given = {name: value for name, value in values.items() if name not in COMMON_OPTIONS}
    assert command.run(shell, **given) == 0
    return shell


@pytest.mark.spec("AUDIT-1")
def test_nodes_are_claimed_as_slurm_names_them() -> None:
    shell = run(CLAIM, "n1", "n2", "--reason", "trial 7")
    body = json.loads(shell.calls[0].body or b"")
    assert body == {"nodes": "n[1-2]", "reason": "trial 7"}
    assert shell.out == "Claimed n[1-2] for alice: claim 3f2a9c01b7de\n"


@pytest.mark.parametrize(
    ("words", "target"),
    [(("3f2a9c01b7de",), "3f2a9c01b7de"), (("n1", "n2"), "n[1-2]"), (("n[1-2]",), "n[1-2]")],
    ids=["id", "nodes", "folded"],
)
def test_a_claim_is_released_by_id_or_nodes(words: tuple[str, ...], target: str) -> None:
    shell = run(RELEASE, *words)
    assert json.loads(shell.calls[0].body or b"") == {"target": target}
    assert shell.out == "Released n[1-2]: claim 3f2a9c01b7de of alice ended\n"


def test_claims_are_a_table() -> None:
    out = run(CLAIMS).out
    assert out.splitlines()[0].split() == [
        *("NODES", "USER", "TENANT", "STATE", "SINCE", "CLAIM", "REASON")
    ]
    assert "n[1-2]  alice  physics  claimed" in out


def test_no_claims_print_nothing_but_a_note() -> None:
    shell = run(CLAIMS, card=None)
    assert shell.out == ""
    assert "No node is claimed" in "".join(shell.notes)


@pytest.mark.parametrize("command", [CLAIM, RELEASE])
def test_what_is_no_node_is_refused_here(command: Command) -> None:
    with pytest.raises(UsageError, match="no nodes"):
        run(command, "n[1-")
