"""The generated wire is fresh, and the two shapes of a thing have the same fields."""

from __future__ import annotations

import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from lattice.domain.allocation import Allocation, Array, Attempt, ExitCode, Heterogeneous, Reason
from lattice.domain.node import Node
from lattice.domain.source import Source
from lattice.features.agents.model import Agent, AgentList, Credentials, Enrolment
from lattice.features.allocations.model import AllocationCard, AllocationList
from lattice.features.health.model import Health
from lattice.features.identity.model import AuthDiscovery, Fact, Identity
from lattice.features.nodes.model import NodeCard, NodeList
from lattice.wire.v1 import (
    agents_pb2,
    allocations_pb2,
    health_pb2,
    identity_pb2,
    nodes_pb2,
    source_pb2,
)

ROOT = Path(__file__).resolve().parents[2]


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "generate", tmp_path], check=True, capture_output=True)
    for made, place in (("v1", "wire/v1"), ("etcd", "adapters/etcd/wire")):
        fresh = {file.name: file.read_text() for file in (tmp_path / made).iterdir()}
        kept = {
            file.name: file.read_text()
            for file in (ROOT / "src/lattice" / place).iterdir()
            if file.is_file()
        }
        assert fresh == kept


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Allocation, allocations_pb2.Allocation),
        (AllocationCard, allocations_pb2.AllocationCard),
        (AllocationList, allocations_pb2.AllocationList),
        (Array, allocations_pb2.Array),
        (Attempt, allocations_pb2.Attempt),
        (AuthDiscovery, identity_pb2.AuthDiscovery),
        (ExitCode, allocations_pb2.ExitCode),
        (Fact, identity_pb2.Fact),
        (Health, health_pb2.Health),
        (Heterogeneous, allocations_pb2.Heterogeneous),
        (Identity, identity_pb2.Identity),
        (Agent, agents_pb2.Agent),
        (AgentList, agents_pb2.AgentList),
        (Credentials, agents_pb2.Credentials),
        (Enrolment, agents_pb2.Enrolment),
        (Node, nodes_pb2.Node),
        (NodeCard, nodes_pb2.NodeCard),
        (NodeList, nodes_pb2.NodeList),
        (Reason, allocations_pb2.Reason),
        (Source, source_pb2.Source),
    ],
)
def test_dataclass_and_message_agree(kind: type, message: type) -> None:
    assert {field.name for field in fields(kind)} == set(message.DESCRIPTOR.fields_by_name)
