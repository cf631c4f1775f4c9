"""What a whole server measures of itself, on a database in a folder and without engines."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
import trustme

from lattice.adapters.pki.authority import ClusterAuthority
from lattice.base.address import Address
from lattice.base.clock import SystemClock
from lattice.base.errors import ConfigurationError
from lattice.base.logs import configure_logging
from lattice.features.doctor.model import CheckState
from lattice.features.doctor.service.examiner import Examiner
from lattice.server.cluster.agents import as_single_server
from lattice.server.config.api_section import ApiSection
from lattice.server.config.engine_sections import TelemetrySection
from lattice.server.config.sections import ServerConfig, SlurmSection, VclusterEntry
from lattice.server.foundation import Ground, open_ground
from lattice.server.inspection.files import certificate_facts, folder_facts, log_folder_facts
from lattice.server.inspection.inspection import ServerInspection
from tests.fakes.certificates import node_pair
from tests.fakes.supervised import SupervisedLoops

_NOBODY = "http://127.0.0.1:9"
_HERE = Address("127.0.0.1", 0)


@pytest_asyncio.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    leaf = trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert("127.0.0.1", "localhost")
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    (tmp_path / "bin").mkdir()
    config = as_single_server(
        ServerConfig(
            api=ApiSection(
                rest_listen=_HERE,
                grpc_listen=_HERE,
                agent_listen=_HERE,
                lane_listen=_HERE,
                tls_cert=tmp_path / "tls.crt",
                tls_key=tmp_path / "tls.key",
                oidc_issuer=_NOBODY,
            ),
            slurm=SlurmSection(
                rest_url=f"unix:{tmp_path}/none.sock",
                bin_dir=tmp_path / "bin",
            ),
            vclusters=(VclusterEntry(name="big", kind="hpc", partition="batch"),),  # type: ignore[arg-type]
            telemetry=TelemetrySection(tsdb_endpoint=_NOBODY),
        ),
        tmp_path,
    )
    log = configure_logging("error")
    try:
        async with open_ground(config, SystemClock(), log, SupervisedLoops()) as opened:
            yield opened
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.mark.spec("OPS-8")
async def test_a_server_without_engines_names_each_and_is_itself_well(ground: Ground) -> None:
    examiner = Examiner(ground.foundation, ServerInspection(ground), "1.0")
    found = {each.id: each for each in (await examiner.examine()).checks}
    assert len(found) >= 30
    assert [each.id for each in found.values() if "internal error" in each.evidence] == []
    broken = {name for name, each in found.items() if each.state is CheckState.FAILED}
    assert broken == {
        "slurm.controller",
        "slurm.list_age",
        "slurm.accounting",
        "slurm.schema",
        "metrics.query",
        "metrics.write",
        "sign_in.keys",
    }
    assert "scontrol can't be run" in found["slurm.controller"].evidence
    # A busy machine makes a store slow, which is a warning.
    fine = (CheckState.OK, CheckState.WARNING)
    well = {name for name, each in found.items() if each.state in fine}
    assert {
        "state.reads",
        "state.writes",
        "state.lasts",
        "state.size",
        "objects.write",
        "objects.read",
        "objects.list",
        "certificates.expiry",
        "certificates.names",
        "certificates.chain",
        "certificates.authority",
        "server.loops",
        "server.files",
    } <= well
    off = {name for name, each in found.items() if each.state is CheckState.OFF}
    assert {"state.members", "state.redundancy", "server.replicas", "server.gate"} <= off
    assert "sign_in.munge" in off
    assert found["agents.missing"].state is CheckState.UNKNOWN
    assert all(each.remedy for each in found.values() if each.state is CheckState.FAILED)


def test_a_chain_without_its_authority_is_found(tmp_path: Path) -> None:
    clock = SystemClock()
    authority, other = (ClusterAuthority.create(name, clock) for name in ("one-0", "two-0"))
    pair = node_pair(authority, "n1", timedelta(days=2))
    file = tmp_path / "chain.pem"
    file.write_bytes(pair.certificate + authority.bundle)
    facts = certificate_facts(file)
    assert (facts.links, facts.fault) == (2, "")
    assert facts.expires - clock.now() < timedelta(days=2)
    file.write_bytes(pair.certificate + other.bundle)
    assert "certificate 1 of the file is not signed by" in certificate_facts(file).fault
    file.write_bytes(b"no certificate")
    with pytest.raises(ConfigurationError):
        certificate_facts(file)


def test_a_folder_that_is_not_there_yet_has_the_disk_of_its_parent(tmp_path: Path) -> None:
    facts = folder_facts(tmp_path / "not" / "there")
    assert facts.free_bytes > 0
    assert facts.total_bytes >= facts.free_bytes
    assert facts.folder.endswith("not/there")


def test_a_log_that_the_unit_of_the_server_sees_read_only_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = os.statvfs(tmp_path)
    # The order of the fields is that of os.statvfs_result; the ninth is the flags.
    hardened = os.statvfs_result((*seen[:8], seen.f_flag | os.ST_RDONLY, seen[9]))
    monkeypatch.setattr(os, "statvfs", lambda _: hardened)
    assert folder_facts(tmp_path).read_only
    assert not log_folder_facts((tmp_path / "none", tmp_path)).read_only
