"""What a server makes of its identity section: all of it, none of it, or a clear word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lattice.adapters.pki.authority import ClusterAuthority
from lattice.base.address import Address
from lattice.base.errors import ConfigurationError
from lattice.domain.peer import checked_name
from lattice.server.cluster.agents import (
    as_single_server,
    begin_identity,
    identity_paths,
    new_replica_id,
    succeed_identity,
)
from lattice.server.cluster.state import PASSING
from lattice.server.config.load import check_server_config
from lattice.server.config.sections import ServerConfig
from tests.fakes.agent_site import ADMIN, opened_agents
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock

TEXT = """\
cluster: {name: Alpha}
slurm: {rest_url: 'unix:/run/slurmrestd.socket'}
api: {agent_listen: '127.0.0.1:50052'}
identity: {ca_cert: id/ca.crt, ca_key: id/ca.key, grant_key: id/grant.key}
"""


def test_a_bootstrap_makes_the_files_once_and_the_rules_are_content(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(TEXT)
    assert check_server_config(file, {}).config is None
    assert begin_identity(file, {})
    assert not begin_identity(file, {})
    assert check_server_config(file, {}).config is not None
    (tmp_path / "id" / "ca.key").unlink()
    with pytest.raises(ConfigurationError, match="missing"):
        begin_identity(file, {})


def test_where_nothing_is_said_nothing_is_made(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("{}")
    assert not begin_identity(file, {})
    assert identity_paths(ServerConfig().identity) is None
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.spec("AUTH-9")
def test_a_next_identity_is_of_the_same_cluster_and_replaces_nothing(tmp_path: Path) -> None:
    config = as_single_server(ServerConfig(), tmp_path / "now")
    made = succeed_identity(config, tmp_path / "next")
    clusters = {
        ClusterAuthority.load(each / "ca.crt", each / "ca.key", ManualClock()).cluster
        for each in (tmp_path / "now", tmp_path / "next")
    }
    assert len(clusters) == 1
    assert made.ca_cert.read_bytes() != (tmp_path / "now" / "ca.crt").read_bytes()
    with pytest.raises(ConfigurationError, match="already"):
        succeed_identity(config, tmp_path / "next")
    with pytest.raises(ConfigurationError, match="no identity to follow"):
        succeed_identity(ServerConfig(), tmp_path / "other")


def test_a_single_server_keeps_its_identity_in_its_folder(tmp_path: Path) -> None:
    config = as_single_server(ServerConfig(), tmp_path / "one")
    assert config.api.agent_listen == Address("127.0.0.1", 50052)
    paths = identity_paths(config.identity)
    assert paths is not None
    before = paths.ca_cert.read_bytes()
    again = as_single_server(ServerConfig(), tmp_path / "one")
    assert again == config
    assert paths.ca_cert.read_bytes() == before
    other = as_single_server(config, tmp_path / "other")
    assert other == replace(config, single=tmp_path / "other")


def test_a_single_server_that_says_how_it_is_reached_is_not_bound_to_loopback(
    tmp_path: Path,
) -> None:
    config = ServerConfig()
    api = replace(config.api, agent_advertise=Address("s1", 50052))
    made = as_single_server(replace(config, api=api), tmp_path)
    assert made.api.agent_listen.is_wildcard


def test_a_replica_has_a_name_no_other_process_has() -> None:
    assert new_replica_id() != new_replica_id()
    assert checked_name(new_replica_id())


@pytest.mark.spec("AUTH-9")
async def test_the_parts_of_a_configured_server_work_together(tmp_path: Path) -> None:
    clock = ManualClock()
    config = as_single_server(ServerConfig(), tmp_path)
    store = InMemoryStateStore(clock)
    async with opened_agents(config, store, clock) as parts:
        assert parts is not None
        made = await parts.enrolment.create(ADMIN, "n1")
        assert made.node == "n1"
        assert parts.replica.cluster.startswith("cluster-")
        assert len(parts.signer.public_keys) == 1


async def test_without_identity_there_are_no_agents_and_without_state_it_is_a_mistake(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    store = InMemoryStateStore(clock)
    async with opened_agents(ServerConfig(), store, clock, PASSING) as parts:
        assert parts is None
    config = as_single_server(ServerConfig(), tmp_path)
    with pytest.raises(ConfigurationError, match="agreed state"):
        async with opened_agents(config, store, clock, PASSING):
            pass
