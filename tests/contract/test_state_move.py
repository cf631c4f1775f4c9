"""A site of one server moves to etcd and another object store, and only as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
import yaml

from lab.doorway import Doorway
from lab.laboratory import Lab
from lattice.adapters.etcd.members import EtcdTls
from lattice.adapters.etcd.store import EtcdStateStore, open_etcd
from lattice.adapters.objects.folder import FolderObjectStore
from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.adapters.sqlite.store import open_sqlite
from lattice.base.clock import SystemClock
from lattice.base.errors import ConfigurationError
from lattice.base.supervisor import Supervisor
from lattice.domain.cluster_record import CLUSTER_KEY, ClusterRecord
from lattice.domain.state import Delete
from lattice.server.cluster.state import open_state
from lattice.server.config.sections import ServerConfig
from lattice.server.recovery.move import move
from lattice.server.recovery.restore import restore
from tests.fakes.stored_backup import back_up

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

CLOCK = SystemClock()
CLUSTER = ClusterRecord("c0ffee", CLOCK.now())
OBJECTS = {f"logs/{number:03}": bytes([number % 256]) * 1000 for number in range(120)}


@pytest.fixture
async def etcd(etcd_lab: Lab, etcd_doorway: Doorway) -> AsyncIterator[EtcdStateStore]:
    """The state where servers have it, empty before and after."""
    client = etcd_lab.etcd.client
    tls = EtcdTls(client.authority, client.certificate, client.key)
    endpoints = [f"https://{each}" for each in etcd_doorway.addresses]
    async with open_etcd(endpoints, tls, CLOCK) as store:
        await _empty(store)
        yield store
        await _empty(store)


async def _empty(store: EtcdStateStore) -> None:
    keys = [each.key for each in (await store.list("")).entries]
    for begin in range(0, len(keys), 100):
        await store.commit([], [Delete(key) for key in keys[begin : begin + 100]])


@pytest.fixture
async def site(tmp_path: Path) -> Path:
    """The folder of a single server that ran."""
    folder = tmp_path / "single"
    async with open_sqlite(folder) as state:
        await state.put(CLUSTER_KEY, CLUSTER.encoded())
        for number in range(250):
            await state.put(f"records/{number:04}", b"%d" % number)
        lease = await state.lease(60)
        await state.put("presence/r1", b"here", lease.id)
    create_identity(_identity(folder), CLOCK, name="c1")
    objects = FolderObjectStore(folder / "objects")
    for key, body in OBJECTS.items():
        await objects.put(key, body)
    return folder


def _identity(folder: Path) -> IdentityPaths:
    return IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")


@pytest.fixture
def config(etcd_lab: Lab, etcd_doorway: Doorway, site: Path, tmp_path: Path) -> Path:
    client, paths = etcd_lab.etcd.client, _identity(site)
    file = tmp_path / "server.yaml"
    sections = {
        "api": {"agent_listen": "127.0.0.1:50052", "lane_listen": "127.0.0.1:50053"},
        "slurm": {"rest_url": "unix:/run/slurmrestd.sock"},
        "identity": {
            "ca_cert": str(paths.ca_cert),
            "ca_key": str(paths.ca_key),
            "grant_key": str(paths.grant_key),
        },
        "quorum": {
            "endpoints": [f"https://{each}" for each in etcd_doorway.addresses],
            "ca": str(client.authority),
            "cert": str(client.certificate),
            "key": str(client.key),
        },
        "objects": {"url": f"file://{tmp_path / 'target'}"},
    }
    file.write_text(yaml.safe_dump(sections))
    return file


async def _moves(site: Path, config: Path) -> int:
    return await asyncio.to_thread(move, ["--from", str(site), "--config", str(config)])


async def _content(store: EtcdStateStore) -> dict[str, bytes]:
    return {each.key: each.value for each in (await store.list("")).entries}


RECORDS = {f"records/{number:04}": b"%d" % number for number in range(250)}


@pytest.mark.story
@pytest.mark.spec("OPS-3", "TRY-1")
async def test_records_and_objects_move_with_the_identity(
    etcd: EtcdStateStore, site: Path, config: Path, tmp_path: Path
) -> None:
    target = FolderObjectStore(tmp_path / "target")
    # An earlier run was interrupted: some is there, one object only in part.
    await etcd.put("records/0007", b"7")
    await target.put("logs/000", OBJECTS["logs/000"])
    await target.put("logs/001", b"cut")
    assert await _moves(site, config) == 0
    assert await _content(etcd) == RECORDS | {CLUSTER_KEY: CLUSTER.encoded()}
    moved = {each.key: await target.read(each.key) async for each in target.listing("")}
    assert moved == OBJECTS

    # Again: nothing is written, and what servers have changed since stays.
    await etcd.put("records/0007", b"changed by a server")
    await target.put("logs/002", b"changed by a server")
    await target.delete("logs/003")
    assert await _moves(site, config) == 0
    assert (await _content(etcd))["records/0007"] == b"changed by a server"
    assert await target.read("logs/002") == b"changed by a server"
    assert await target.read("logs/003") == OBJECTS["logs/003"]

    # The folder can't be served beside the moved state.
    served = ServerConfig(single=site)
    log = structlog.get_logger()
    with pytest.raises(ConfigurationError, match="was moved to etcd"):
        async with open_state(served, CLOCK, log, Supervisor(CLOCK, lambda: None)):
            pass


async def test_an_etcd_with_another_cluster_is_refused(
    etcd: EtcdStateStore, site: Path, config: Path, tmp_path: Path
) -> None:
    other = ClusterRecord("beef", CLOCK.now())
    await etcd.put(CLUSTER_KEY, other.encoded())
    with pytest.raises(ConfigurationError, match="etcd holds another cluster: beef"):
        await _moves(site, config)
    assert await _content(etcd) == {CLUSTER_KEY: other.encoded()}
    assert not (tmp_path / "target" / "logs").exists()
    assert not (site / "moved.json").exists()


async def test_another_identity_is_refused(
    etcd: EtcdStateStore, site: Path, config: Path, tmp_path: Path
) -> None:
    create_identity(_identity(tmp_path / "other"), CLOCK, name="c1")
    text = config.read_text().replace(str(site / "grant.key"), str(tmp_path / "other/grant.key"))
    config.write_text(text)
    with pytest.raises(ConfigurationError, match=r"identity\.grant_key is not the file"):
        await _moves(site, config)
    assert await _content(etcd) == {}


async def test_a_restore_into_an_etcd_that_holds_a_cluster_changes_nothing(
    etcd: EtcdStateStore, site: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await etcd.put(CLUSTER_KEY, CLUSTER.encoded())
    name = await back_up(config, {CLUSTER_KEY: CLUSTER.encoded()} | RECORDS)
    argv = ["--config", str(config), name]
    with pytest.raises(ConfigurationError, match="holds a cluster already"):
        await asyncio.to_thread(restore, argv)
    assert "del --prefix /lattice/" in capsys.readouterr().out
    assert await _content(etcd) == {CLUSTER_KEY: CLUSTER.encoded()}
    await _empty(etcd)
    assert await asyncio.to_thread(restore, argv) == 0
    found = await _content(etcd)
    assert {key: found[key] for key in RECORDS} == RECORDS
