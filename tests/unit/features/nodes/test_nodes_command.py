from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.errors import UsageError
from lattice.base.text import cells
from lattice.features.nodes.command import VCLUSTERS, nodes
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


def sick(health: str, *words: str, **changes: Any) -> dict[str, Any]:
    agent = {"link": "linked", "replica": "a", "health": health, "health_words": list(words)}
    return answers.node("n3", agent=agent, **changes)


@pytest.mark.spec("OPS-10")
def test_gpus_that_are_not_sound_stand_beside_the_state_with_why() -> None:
    lost = sick("failure", "GPU-a is lost (GPU is lost)", "7 GPUs instead of 8")
    (_, line) = run(None, lost).out.splitlines()
    assert "● ready (failure)" in line
    assert line.endswith("GPU-a is lost (GPU is lost) (and 1 more)")
    assert "● ready (warning)" in run(None, sick("warning", "7 GPUs instead of 8")).out


@pytest.mark.spec("OPS-10")
@pytest.mark.parametrize("health", ["healthy", "unknown"])
def test_sound_gpus_and_those_nobody_looked_at_need_no_word(health: str) -> None:
    assert "(" not in run(None, sick(health)).out


@pytest.mark.spec("OPS-10")
def test_what_slurm_says_of_a_node_stands_before_its_health() -> None:
    down = sick("warning", "7 GPUs instead of 8", state="drained", reason="bad DIMM")
    (_, line) = run(None, down).out.splitlines()
    assert "○ drained (warning)" in line
    assert line.endswith("bad DIMM; 7 GPUs instead of 8")


@pytest.mark.spec("OPS-10")
def test_the_card_has_all_of_it_and_nothing_that_acts_on_a_terminal() -> None:
    shell = FakeShell({})
    node = sick("failure", "first\x1b[2J", "second")
    shell.routes = {"/v1/nodes/n3": {"node": node, "sources": [], "allocations": []}}
    assert nodes(shell, name="n3", state=(), partition=None, by=None) == 0
    assert "n3  ● ready (failure)" in shell.out
    assert "Health      failure; first␛[2J; second" in shell.out


def test_vclusters_are_a_row_each() -> None:
    train = {
        "name": "train",
        "kind": "hpc",
        "partition": "gpu",
        "qos": "",
        "nodes": 3,
        "states": [{"state": "ready", "nodes": 2}, {"state": "down", "nodes": 1}],
    }
    lost = train | {"name": "lost\x1b", "qos": "high", "nodes": 0, "states": []}
    shell = FakeShell({"/v1/vclusters": {"vclusters": [train, lost], "sources": []}})
    assert VCLUSTERS.run(shell) == 0
    assert shell.out.splitlines()[1].split(maxsplit=5) == [
        *("train", "hpc", "gpu", "any", "3", "2 ready, 1 down"),
    ]
    assert "no nodes" in shell.out
    assert "\x1b" not in shell.out


@pytest.mark.spec("SRC-3")
def test_the_card_shows_operators_the_side_of_the_host_of_a_slice() -> None:
    guest = {"name": "blue", "gpus": [0], "state": "healthy"}
    host = {"address": "10.0.8.2", "bridge": "br0", "netdata": "http://n1:19999"}
    answer = {
        "node": answers.node(slices=[{"guest": guest, "host": host}]),
        "sources": [],
        "allocations": [],
    }
    shell = FakeShell({"/v1/nodes/n1": answer})
    assert nodes(shell, name="n1", state=(), partition=None, by=None) == 0
    assert "blue: 1 GPU, healthy" in shell.out
    assert "guest at 10.0.8.2; bridge br0; Netdata http://n1:19999" in shell.out
