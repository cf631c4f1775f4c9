from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.errors import UsageError
from lattice.base.text import cells
from lattice.features.nodes.command.listing import nodes
from tests.fakes import answers
from tests.fakes.shell import FakeShell

DOWN = answers.node(
    "n2",
    state="down",
    slurm_state="DOWN+NOT_RESPONDING",
    reason="Not responding",
    reason_by="slurm",
    reason_at=answers.NOW,
    partitions=["gpu"],
    switch="s2",
)


def run(
    shell: FakeShell | None = None, *found: dict[str, Any], sources: Any = (), **values: Any
) -> FakeShell:
    shell = shell or FakeShell({})
    listing = {"nodes": list(found), "sources": list(sources)}
    card = {"node": answers.node(), "sources": [], "allocations": ["12345"]}
    shell.routes = {"/v1/nodes": listing, "/v1/nodes/n1": card}
    assert (
        nodes(shell, **({"name": None, "state": (), "partition": None, "by": None} | values)) == 0
    )
    return shell


@pytest.mark.spec("ALLOC-6")
def test_list_answers_what_sinfo_answers() -> None:
    assert run(None, answers.node(), DOWN).out.splitlines() == [
        "NAME  STATE    SLURM                 CPUS   MEMORY  GPUS  PARTITIONS  SWITCH  REASON",
        "n1    ● ready  MIXED                32/64  64/256G   2/4  gpu,batch   s1      —",
        (
            "n2    ✗ down   DOWN+NOT_RESPONDING  32/64  64/256G   2/4  gpu         s2      "
            "Not responding — by slurm since 14:02:11Z"
        ),
    ]


def test_terminal_of_80_columns() -> None:
    text = run(FakeShell({}, width=80), answers.node(), DOWN).out
    assert all(cells(line) <= 80 for line in text.splitlines())
    assert "    └ Not responding — by slurm since 14:02:11Z" in text


def test_summary_by_partition_and_switch() -> None:
    lines = run(None, answers.node(), DOWN, by="partition").out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["PARTITION", "NODES", "READY"],
        ["batch", "1", "1"],
        ["gpu", "2", "1"],
    ]
    assert lines[2].split()[-2:] == ["64/128", "4/8"]
    assert run(None, answers.node(), DOWN, by="switch").out.splitlines()[1].startswith("s1")


@pytest.mark.spec("ALLOC-6")
def test_card() -> None:
    shell = run(None, name="n1")
    assert shell.out.splitlines()[0] == "n1  ● ready"
    assert "  Yours       12345" in shell.out.splitlines()
    assert "  GPUs        2 of 4 in use" in shell.out.splitlines()


def test_choices_go_to_the_server() -> None:
    shell = run(None, state=(("down",),), partition="gpu")
    assert shell.calls[0].params == (("state", "down"), ("partition", "gpu"))
    assert shell.notes == ["No node matches."]
    with pytest.raises(UsageError):
        run(None, name="n1", by="switch")


@pytest.mark.spec("ALLOC-7")
def test_stale_state_carries_its_age() -> None:
    stale = {"name": "slurmctld", "ok": False, "as_of": answers.NOW, "age_s": 130}
    assert run(None, DOWN, sources=[stale]).warnings == [
        "slurmctld has not answered for 2 min; this is the state as of 14:02:11Z."
    ]


def test_hostile_names_and_reasons_are_inert() -> None:
    """Attack 16."""
    evil = "x\x1b[2J\u202e\r\n"
    node = answers.node(
        evil, slurm_state=evil, reason=evil, reason_by=evil, switch=evil, partitions=[evil]
    )
    for by in (None, "partition", "switch"):
        assert all(line.isprintable() for line in run(None, node, by=by).out.split("\n"))


def test_json() -> None:
    assert json.loads(run(FakeShell({}, output="json"), DOWN).out)["nodes"][0]["name"] == "n2"
