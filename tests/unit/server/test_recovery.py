"""Restoring the database of a single server: offline, or ordered and done at the next start."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import structlog
import yaml

from lattice.adapters.objects.folder import FolderObjectStore
from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.adapters.sqlite.store import open_sqlite
from lattice.base.clock import SystemClock
from lattice.base.errors import ConfigurationError, DataUnavailable
from lattice.domain.backup import part_key
from lattice.domain.cluster_record import CLUSTER_KEY, ClusterRecord, read_cluster
from lattice.domain.state import Entry
from lattice.server.cluster.backups import ORDERED, etcd_steps, restore_means
from lattice.server.config.sections import QuorumSection, ServerConfig
from lattice.server.main import main
from lattice.server.recovery.restore import restore, restore_if_ordered
from tests.fakes.stored_backup import back_up

CLOCK = SystemClock()
CLUSTER = ClusterRecord("c0ffee", CLOCK.now())
RECORDS = {CLUSTER_KEY: CLUSTER.encoded(), "locks/user/mallory": b"{}", "shares/1": b"x"}


class SingleSite:
    """The folder and the configuration of a single server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "single"
        self.file = folder / "server.yaml"
        paths = IdentityPaths(*(self.folder / each for each in ("ca.crt", "ca.key", "grant.key")))
        create_identity(paths, CLOCK, name="c1")
        self.sections = {
            "slurm": {"rest_url": "unix:/run/slurmrestd.sock"},
            "api": {"agent_listen": "127.0.0.1:50052", "lane_listen": "127.0.0.1:50053"},
            "identity": {
                "ca_cert": str(paths.ca_cert),
                "ca_key": str(paths.ca_key),
                "grant_key": str(paths.grant_key),
            },
            "backup": {"folder": str(folder / "backups")},
        }
        self.file.write_text(yaml.safe_dump(self.sections))

    @property
    def argv(self) -> list[str]:
        return ["--config", str(self.file), "--single", str(self.folder)]

    async def restore(self, *words: str) -> int:
        return await asyncio.to_thread(restore, [*self.argv, *words])

    async def write(self, key: str, value: bytes) -> None:
        async with open_sqlite(self.folder) as state:
            await state.put(key, value)

    async def content(self) -> dict[str, bytes]:
        async with open_sqlite(self.folder) as state:
            return {each.key: each.value for each in (await state.list("")).entries}

    async def epoch(self) -> int:
        value = (await self.content())[CLUSTER_KEY]
        return read_cluster(Entry(CLUSTER_KEY, value, 0, 0)).epoch


@pytest.fixture
async def site(tmp_path: Path) -> SingleSite:
    site = SingleSite(tmp_path)
    await site.write(CLUSTER_KEY, CLUSTER.encoded())
    await site.write("shares/2", b"made since")
    return site


def _without_cluster(content: dict[str, bytes]) -> dict[str, bytes]:
    return {key: value for key, value in content.items() if key != CLUSTER_KEY}


@pytest.mark.spec("OPS-3")
async def test_a_single_server_is_restored_and_its_old_database_stays(
    site: SingleSite, capsys: pytest.CaptureFixture[str]
) -> None:
    name = await back_up(site.file, RECORDS)
    assert await site.restore() == 0
    assert _without_cluster(await site.content()) == _without_cluster(RECORDS)
    assert await site.epoch() == 1
    (before,) = site.folder.glob("state.db.before-*")
    shown = capsys.readouterr().out
    assert str(before) in shown
    assert name in shown
    assert not (site.folder / "state.new").exists()

    # The backup is from before that restore now.
    with pytest.raises(DataUnavailable, match="from before a restore"):
        await site.restore(name)
    assert await site.epoch() == 1
    assert await site.restore(name, "--older") == 0
    assert await site.epoch() == 2


async def test_only_a_check_changes_nothing(site: SingleSite) -> None:
    name = await back_up(site.file, RECORDS)
    before = await site.content()
    path = Path(site.sections["backup"]["folder"]) / "state-backups" / name
    assert await site.restore("--check", str(path)) == 0
    assert await site.content() == before
    assert list(site.folder.glob("state.db.before-*")) == []


@pytest.mark.spec("OPS-3")
async def test_a_database_that_is_damaged_or_gone_is_restored(site: SingleSite) -> None:
    await back_up(site.file, RECORDS)
    (site.folder / "state.db").write_bytes(b"not a database")
    assert await site.restore() == 0
    (site.folder / "state.db").unlink()
    assert await site.restore("--older") == 0
    assert _without_cluster(await site.content()) == _without_cluster(RECORDS)


@pytest.mark.threat("backup-store")
async def test_a_changed_backup_leaves_the_database_alone(site: SingleSite) -> None:
    name = await back_up(site.file, RECORDS)
    objects = FolderObjectStore(Path(site.sections["backup"]["folder"]))
    body = await objects.read(part_key(name, 1))
    await objects.put(part_key(name, 1), body[:-1] + bytes([body[-1] ^ 1]))
    before = (site.folder / "state.db").read_bytes()
    with pytest.raises(DataUnavailable, match="part 1 was changed"):
        await site.restore()
    assert (site.folder / "state.db").read_bytes() == before


async def test_a_folder_in_use_or_without_keys_is_refused(site: SingleSite) -> None:
    await back_up(site.file, RECORDS)
    async with open_sqlite(site.folder):
        with pytest.raises(ConfigurationError, match="in use by another lattice-server"):
            await site.restore()
    del site.sections["identity"]
    site.file.write_text(yaml.safe_dump(site.sections))
    (site.folder / "grant.key").unlink()
    with pytest.raises(ConfigurationError, match="has no keys of a cluster"):
        await site.restore()


@pytest.mark.spec("OPS-3")
async def test_an_ordered_restore_is_done_at_the_next_start(site: SingleSite) -> None:
    name = await back_up(site.file, RECORDS)
    config = _config(site)
    order = restore_means(config).order
    assert order is not None
    await order(name)
    assert "shares/2" in await site.content()
    await restore_if_ordered(config, CLOCK, structlog.get_logger())
    assert _without_cluster(await site.content()) == _without_cluster(RECORDS)
    assert not (site.folder / ORDERED).exists()
    await restore_if_ordered(config, CLOCK, structlog.get_logger())
    assert await site.epoch() == 1


async def test_an_order_that_fails_leaves_the_state_and_is_put_aside(site: SingleSite) -> None:
    config = _config(site)
    for text in ("20261119T032011Z-hand-1a2b3c4d", "../../x"):
        (site.folder / ORDERED).write_text(text)
        await restore_if_ordered(config, CLOCK, structlog.get_logger())
        assert "shares/2" in await site.content()
        assert (site.folder / f"{ORDERED}.failed").exists()
        assert not (site.folder / ORDERED).exists()


async def test_an_order_that_nobody_expects_any_more_is_put_aside(site: SingleSite) -> None:
    name = await back_up(site.file, RECORDS)
    config = _config(site)
    order = site.folder / ORDERED
    order.write_text(name)
    os.utime(order, (0, 0))
    await restore_if_ordered(config, CLOCK, structlog.get_logger())
    assert "shares/2" in await site.content()
    assert (site.folder / f"{ORDERED}.expired").exists()
    assert not order.exists()


def _config(site: SingleSite) -> ServerConfig:
    from dataclasses import replace

    from lattice.server.config.load import load_server_config

    return replace(load_server_config(site.file, {}), single=site.folder)


def test_the_steps_for_etcd_name_its_members_and_the_file() -> None:
    quorum = QuorumSection(endpoints=("https://e1:2379", "https://e2:2379"), ca=Path("/ca.crt"))
    config = ServerConfig(quorum=quorum, file=Path("/etc/lattice/my site.yaml"))
    text = "\n".join(etcd_steps(config, "NAME"))
    assert "e1:2379, e2:2379" in text
    assert "--endpoints=https://e1:2379,https://e2:2379 --cacert=/ca.crt del --prefix" in text
    assert "lattice-server restore --config '/etc/lattice/my site.yaml' NAME" in text


def test_the_programs_show_their_help(capsys: pytest.CaptureFixture[str]) -> None:
    for program in ("restore", "move"):
        with pytest.raises(SystemExit) as ended:
            main([program, "--help"])
        assert ended.value.code == 0
        assert f"lattice-server {program}" in capsys.readouterr().out


async def test_moving_needs_a_single_site_and_an_etcd(
    site: SingleSite, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["move", "--config", str(site.file), "--from"]
    assert await asyncio.to_thread(main, [*argv, str(site.folder / "none")]) == 78
    assert "no database of a single server" in capsys.readouterr().err
    assert await asyncio.to_thread(main, [*argv, str(site.folder)]) == 78
    assert "names no etcd" in capsys.readouterr().err
