"""Backups: what they hold, what is wrong with a changed one, and what is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lattice.base.errors import DataUnavailable, Unavailable, UsageError
from lattice.base.signatures import SigningKey
from lattice.domain.backup import (
    PART_BYTES,
    BackupManifest,
    manifest_key,
    part_key,
)
from lattice.domain.cluster_record import CLUSTER_KEY, ClusterRecord
from lattice.features.state.model import BackupReference
from tests.unit.features.state.state_site import ADMIN, CLUSTER, LOCATION, StateSite

NEWEST = BackupReference()


@pytest.fixture
async def site() -> StateSite:
    site = StateSite()
    await site.fill()
    return site


async def made(site: StateSite) -> BackupManifest:
    return await site.store.manifest((await site.service.create(ADMIN)).name)


async def problem(site: StateSite) -> str:
    found = await site.service.verify(NEWEST)
    assert found.sound is not bool(found.problem)
    return found.problem


@pytest.mark.spec("OPS-3")
async def test_a_backup_is_read_back_with_every_record_that_lasts(site: StateSite) -> None:
    backup = await site.service.create(ADMIN)
    records = await site.store.records(await site.store.manifest(backup.name))
    assert [each.key for each in records] == [
        CLUSTER_KEY, *(f"records/{number:06}" for number in range(3))
    ]  # fmt: skip
    assert records[2].value == b"\x00value 1"
    assert backup.records == 4
    assert (backup.cluster, backup.by, backup.version) == (CLUSTER.id, "olga", "9.9")
    assert backup.revision == (await site.state.list("")).revision
    assert (await site.service.verify(NEWEST)).sound
    assert site.journal.acts == [f"backup {backup.name} olga revision {backup.revision}"]


async def test_a_large_state_has_several_parts(site: StateSite) -> None:
    for number in range(PART_BYTES // 60_000 + 10):
        await site.state.put(f"large/{number:04}", bytes(50_000))
    manifest = await made(site)
    assert len(manifest.parts) == 2
    assert len(await site.store.records(manifest)) == manifest.records
    assert (await site.service.verify(NEWEST)).sound


async def test_the_newest_backup_is_listed_first(site: StateSite) -> None:
    first = await made(site)
    site.clock.advance(60)
    second = await made(site)
    found = await site.service.backups()
    assert [each.name for each in found.backups] == [second.name, first.name]
    assert found.backups[0].taken == second.taken.replace(microsecond=0)
    assert found.location == LOCATION


async def test_without_the_state_there_is_no_backup(site: StateSite) -> None:
    site.state.away = True
    with pytest.raises(Unavailable):
        await site.service.create(ADMIN)
    site.state.away = False
    with pytest.raises(DataUnavailable, match="There is no backup"):
        await site.service.verify(NEWEST)


async def test_a_backup_that_was_interrupted_is_not_listed(site: StateSite) -> None:
    manifest = await made(site)
    await site.objects.delete(manifest_key(manifest.name))
    assert (await site.service.backups()).backups == ()
    site.clock.advance(timedelta(days=2).total_seconds())
    assert await site.store.prune(14) == (manifest.name,)
    assert [each async for each in site.objects.listing("")] == []


@pytest.mark.spec("OPS-3")
async def test_every_flipped_bit_of_a_part_is_named(site: StateSite) -> None:
    manifest = await made(site)
    for at in range(0, manifest.parts[0].size_bytes, 7):
        await site.flip(part_key(manifest.name, 1), at)
        assert "part 1 was changed: its SHA-256 differs" in await problem(site)
        await site.flip(part_key(manifest.name, 1), at)
    assert await problem(site) == ""


async def test_a_flipped_bit_of_the_manifest_is_named(site: StateSite) -> None:
    manifest = await made(site)
    key = manifest_key(manifest.name)
    for at in range(0, len(await site.objects.read(key)), 5):
        await site.flip(key, at)
        assert "manifest" in await problem(site)
        await site.flip(key, at)


async def test_a_missing_a_cut_and_a_longer_part_are_named(site: StateSite) -> None:
    manifest = await made(site)
    key, size = part_key(manifest.name, 1), manifest.parts[0].size_bytes
    body = await site.objects.read(key)
    await site.objects.put(key, body[:-1])
    assert await problem(site) == f"part 1 has {size - 1} bytes instead of {size}"
    await site.objects.put(key, body + b"x")
    assert await problem(site) == f"part 1 has {size + 1} bytes instead of {size}"
    await site.objects.delete(key)
    assert await problem(site) == "part 1 of 1 is missing"


@pytest.mark.threat("backup-store")
async def test_a_manifest_by_another_key_is_refused(site: StateSite) -> None:
    other = StateSite(key=SigningKey.generate())
    await other.fill()
    manifest = await made(other)
    async for each in other.objects.listing(""):
        await site.objects.put(each.key, await other.objects.read(each.key))
    assert "not trusted" in await problem(site)
    with pytest.raises(DataUnavailable, match="not trusted"):
        await site.service.restore(ADMIN, BackupReference(path=manifest.name))
    assert site.ordered == []


@pytest.mark.threat("backup-store")
async def test_an_old_backup_under_a_newer_name_is_refused(site: StateSite) -> None:
    old = await made(site)
    newer = old.name.replace(old.name[:8], "20991231")
    for key in ("manifest", "part-00001"):
        body = await site.objects.read(f"state-backups/{old.name}/{key}")
        await site.objects.put(f"state-backups/{newer}/{key}", body)
    assert "belongs to another backup" in await problem(site)


@pytest.mark.threat("backup-store")
async def test_a_backup_of_another_cluster_is_refused(site: StateSite) -> None:
    manifest = await made(site)
    await site.state.put(CLUSTER_KEY, ClusterRecord("beef", CLUSTER.created).encoded())
    assert await problem(site) == "it is of cluster c0ffee, and this one is beef"
    with pytest.raises(DataUnavailable, match="cluster c0ffee"):
        await site.service.restore(ADMIN, BackupReference(path=manifest.name))
    assert site.ordered == []


@pytest.mark.threat("backup-store")
async def test_a_manifest_that_lies_about_its_cluster_is_refused(site: StateSite) -> None:
    await site.craft(await made(site), cluster="beef")
    await site.state.put(CLUSTER_KEY, ClusterRecord("beef", CLUSTER.created).encoded())
    assert "another cluster or epoch than its manifest" in await problem(site)


@pytest.mark.threat("backup-store")
async def test_a_backup_from_before_a_restore_is_refused(site: StateSite) -> None:
    manifest = await made(site)
    await site.set_epoch(1)
    with pytest.raises(DataUnavailable, match="epoch 0, from before a restore"):
        await site.service.restore(ADMIN, NEWEST)
    site.clock.advance(60)
    await made(site)
    # The live state is lost: the newest backup shows the epoch.
    site.state.away = True
    with pytest.raises(DataUnavailable, match="epoch 0, from before a restore"):
        await site.service.restore(ADMIN, BackupReference(path=manifest.name))
    assert site.ordered == []


@pytest.mark.threat("backup-store")
@pytest.mark.parametrize(
    "path",
    [
        "../../etc/shadow",
        "/etc/shadow",
        "/etc/20261119T032011Z-hand-1a2b3c4d",
        "20261119T032011Z-hand-1a2b3c4d/../../x",
        "20261119T032011Z-hand-1a2b3c4d\n",
        f"{LOCATION}/../20261119T032011Z-hand-1a2b3c4d",
        "a" * 10_000,
    ],
)
async def test_a_path_outside_the_configured_place_is_refused(site: StateSite, path: str) -> None:
    reads = site.objects.reads
    with pytest.raises(UsageError, match="is no backup of this server"):
        await site.service.restore(ADMIN, BackupReference(backup_path=path))
    assert site.objects.reads == reads
    assert site.ordered == []


@pytest.mark.threat("backup-store")
@pytest.mark.parametrize("key", ["../cluster", "records/\x00", "", "a b", "k" * 600])
async def test_records_with_crafted_keys_are_refused(site: StateSite, key: str) -> None:
    """The signature is valid: whoever crafted it had the key of a server."""
    import base64
    import hashlib
    import json

    from lattice.base.zstd import zstd

    manifest = await made(site)
    line = json.dumps({"key": key, "value": base64.b64encode(b"x").decode()}).encode() + b"\n"
    body = zstd.compress(line)
    part = type(manifest.parts[0])(len(body), len(line), 1, hashlib.sha256(body).hexdigest())
    await site.objects.put(part_key(manifest.name, 1), body)
    await site.craft(manifest, parts=(part,), records=1)
    found = await problem(site)
    # A key with dots is no path: records go into the state only, below its root.
    assert "can't be read" in found or "no record of a cluster" in found


@pytest.mark.threat("backup-store")
async def test_a_part_that_expands_to_more_than_it_says_is_refused(site: StateSite) -> None:
    import hashlib

    from lattice.base.zstd import zstd

    manifest = await made(site)
    body = zstd.compress(bytes(64 * 1024 * 1024))
    digest = hashlib.sha256(body).hexdigest()
    await site.objects.put(part_key(manifest.name, 1), body)
    for plain_bytes, text in ((1000, "can't be unpacked"), (64 * 1024 * 1024, "too large")):
        part = type(manifest.parts[0])(len(body), plain_bytes, 1, digest)
        await site.craft(manifest, parts=(part,))
        assert text in await problem(site)


@pytest.mark.spec("OPS-3")
async def test_a_restore_is_planned_and_changes_no_state(site: StateSite) -> None:
    manifest = await made(site)
    before = await site.state.list("")
    plan = await site.service.restore(ADMIN, BackupReference(path=f"{LOCATION}/{manifest.name}"))
    assert plan.by_server
    assert site.ordered == [manifest.name]
    assert plan.steps == (f"restore {manifest.name}",)
    assert "Revoke and lock again" in plan.lost
    assert await site.state.list("") == before

    by_hand = site.make_service(by_server=False)
    assert not (await by_hand.restore(ADMIN, NEWEST)).by_server
    assert site.ordered == [manifest.name]
    # The log does not say that anything was restored.
    assert site.journal.acts[-2:] == [
        f"restore {manifest.name} olga {manifest.name}: ordered for the next start",
        f"restore {manifest.name} olga {manifest.name}: only the steps were shown",
    ]


@pytest.mark.spec("OPS-3")
@pytest.mark.threat("backup-store")
@pytest.mark.parametrize(
    "key",
    [
        "state-backups/lost",
        "state-backups/20260229T000000Z-scheduled-00000000/manifest",
        "state-backups/20261399T999999Z-hand-00000000/part-00001",
        "state-backups/20260101T000000Z-scheduled-00000000",
    ],
)
async def test_a_foreign_object_beside_backups_is_passed_over(site: StateSite, key: str) -> None:
    backup = await made(site)
    await site.objects.put(key, b"anything")
    assert [each.name for each in (await site.service.backups()).backups] == [backup.name]
    assert (await site.service.verify(NEWEST)).name == backup.name
    assert await site.service.prune() == ()
