"""With a real process in place of scontrol."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.operator import SlurmNodeOperator, parse_admitted, parse_states
from lattice.base.errors import Unavailable
from lattice.domain.node import NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import AllExcept
from tests.fakes.in_memory_administration import InMemoryAdministration


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "scontrol"


def says(scontrol: Path, script: str) -> SlurmNodeOperator:
    scontrol.write_text(f"#!/bin/sh\n{script}\n")
    scontrol.chmod(0o755)
    return SlurmNodeOperator(SlurmCommands(), InMemoryAdministration())


@pytest.mark.spec("OPS-4")
@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("IDLE", NodeState.READY),
        ("MIXED+PLANNED", NodeState.READY),
        ("IDLE+DRAIN", NodeState.DRAINED),
        ("MIXED+DRAIN", NodeState.DRAINING),
        ("IDLE+COMPLETING+DRAIN", NodeState.DRAINING),
        ("ALLOCATED+DRAIN", NodeState.DRAINING),
        ("DOWN", NodeState.DOWN),
        ("DOWN*+DRAIN", NodeState.DOWN),
        ("IDLE*", NodeState.UNKNOWN),
        ("IDLE~", NodeState.READY),
        ("SOMETHING", NodeState.UNKNOWN),
    ],
)
def test_states_are_read(said: str, state: NodeState) -> None:
    text = f"NodeName=n1 Arch=x86_64 CoresPerSocket=1 State={said} ThreadsPerCore=1\n"
    assert parse_states(text) == {"n1": state}


@pytest.mark.spec("AUTH-4")
def test_the_accounts_that_a_partition_admits_are_read() -> None:
    text = (
        "PartitionName=batch AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Nodes=n[1-3]\n"
        "PartitionName=bio AllowGroups=ALL AllowAccounts=biology,genomics AllowQos=ALL Nodes=n2\n"
        "PartitionName=rest AllowGroups=ALL DenyAccounts=biology AllowQos=ALL Nodes=n3\n"
        "PartitionName=odd AllowGroups=ALL AllowAccounts=(null) Nodes=n3\n"
        "PartitionName=both AllowAccounts=biology DenyAccounts=genomics Nodes=n3\n"
        "PartitionName=all AllowAccounts=ALL DenyAccounts=biology,genomics Nodes=n3\n"
        "PartitionName=none AllowAccounts=ALL DenyAccounts=(null) Nodes=n3\n"
        "nonsense AllowAccounts=x\n"
    )
    assert parse_admitted(text) == {
        "batch": None,
        "bio": frozenset({"biology", "genomics"}),
        "rest": AllExcept(frozenset({"biology"})),
        "odd": None,
        "both": frozenset({"biology"}),
        "all": AllExcept(frozenset({"biology", "genomics"})),
        "none": None,
    }


@pytest.mark.spec("AUTH-4")
async def test_partitions_are_asked_for_hidden_ones_too(scontrol: Path) -> None:
    operator = says(scontrol, 'echo "PartitionName=p AllowAccounts=a Asked=$*"')
    assert await operator.admitted() == {"p": frozenset({"a"})}


def test_a_reason_can_not_play_a_state() -> None:
    text = (
        "NodeName=n1 State=IDLE+DRAIN Weight=1 Reason=x State=DOWN NodeName=n2 [root@1]\n"
        "NodeName=n1 State=DOWN a line of somebody's reason\n"
        "nonsense\n"
    )
    assert parse_states(text) == {"n1": NodeState.DRAINED}


@pytest.mark.spec("OPS-4")
async def test_changes_go_to_the_gate_with_the_caller() -> None:
    gate = InMemoryAdministration()
    operator = SlurmNodeOperator(SlurmCommands(), gate)
    nodes = NodeSet(["n1", "n2"])
    await operator.drain(nodes, "olga: bad DIMM", by="sub-olga")
    assert (gate.states["n1"], gate.states["n3"]) == ("drained", "idle")
    await operator.disable(nodes, "olga: smoke", by="sub-olga")
    assert gate.states["n2"] == "down"
    await operator.resume(nodes, by="sub-oscar")
    assert set(gate.states.values()) == {"idle"}
    assert gate.by == ["sub-olga", "sub-olga", "sub-oscar"]


async def test_any_other_failure_is_unavailable(scontrol: Path) -> None:
    operator = says(scontrol, "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(Unavailable, match="Unable to contact"):
        await operator.states(NodeSet(["n1"]))


@pytest.mark.parametrize("sign", ["\r", "\v", "\x1c", "\x85", "\u2028"])
def test_a_field_adds_no_line(sign: str) -> None:
    states = f"NodeName=n1 State=DOWN Reason=a{sign}NodeName=n2 State=IDLE \n"
    assert parse_states(states) == {"n1": NodeState.DOWN}
    partitions = (
        f"PartitionName=p AllowAccounts=a Nodes=x{sign}PartitionName=p AllowAccounts=ALL \n"
    )
    assert parse_admitted(partitions) == {"p": frozenset({"a"})}
