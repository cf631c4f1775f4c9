"""The agreed state is shown, backed up, checked, lost and restored; a member is replaced."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.addresses import SEAWEED_S3_PORT
from lab.doorway import Doorway
from lab.laboratory import Lab
from lab.server import EXECUTABLE
from lab.users import SERVER_USER
from lattice.adapters.objects.s3 import S3ObjectStore
from lattice.base.clock import SystemClock
from lattice.domain.backup import part_key
from tests.contract.stores import s3_place
from tests.e2e.people import Person
from tests.e2e.put_right import NODES, administrator, linked
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def olga(lab: Lab) -> Person:
    return administrator(lab)


@pytest.fixture
def store(lab: Lab, tmp_path: Path) -> Iterator[S3ObjectStore]:
    """Where the lab's servers keep backups."""
    with Doorway(lab.network, (SEAWEED_S3_PORT,)) as doorway:
        place = replace(s3_place(doorway.addresses[0], tmp_path), prefix="logs")
        yield S3ObjectStore(place, SystemClock())


@pytest.mark.story
@pytest.mark.spec("OPS-2")
def test_the_quorum_is_shown_to_administrators(lab: Lab, olga: Person, alice: Person) -> None:
    found = olga.asks("admin", "quorum")
    assert (found["store"], found["healthy"], found["needed"]) == ("etcd", True, 2)
    names = {each["etcd_name"] for each in found["members"]}
    assert names == {"etcd-1", "etcd-2", "etcd-3"}
    assert found["leader"] in names
    assert all(each["index"] > 0 and each["size_bytes"] > 0 for each in found["members"])
    assert found["cluster"]

    lab.etcd.members[0].kill()
    try:
        said = eventually(
            lambda: olga.tries("admin", "quorum"), lambda said: "can't be reached" in said.out
        )
        assert said.code == 0
        assert "no more may fail" in said.out
    finally:
        lab.etcd.members[0].up()
    assert alice.tries("admin", "quorum").code == 77


@pytest.mark.story
@pytest.mark.spec("OPS-3")
async def test_a_backup_is_checked_and_a_changed_byte_is_named(
    olga: Person, alice: Person, store: S3ObjectStore
) -> None:
    made = olga.asks("admin", "backup")
    name = made["name"]
    assert made["records"] > 0
    assert olga.asks("admin", "backups")["backups"][0]["name"] == name
    assert olga.asks("admin", "verify") == olga.asks("admin", "verify", name)
    assert olga.tries("admin", "verify", name).code == 0

    key = part_key(name, 1)
    body = await store.read(key)
    await store.put(key, bytes([*body[:20], body[20] ^ 1, *body[21:]]))
    said = olga.tries("admin", "verify", name)
    assert (said.code, "part 1 was changed: its SHA-256 differs" in said.out) == (76, True)
    assert olga.tries("admin", "restore", name).code == 76

    await store.put(key, body)
    said = olga.tries("admin", "restore", name)
    assert said.code == 0, said
    assert "Nothing was changed. These steps restore it" in said.out
    assert "lattice-server restore --config /" in said.out
    for words in (("backup",), ("backups",), ("verify",), ("restore",)):
        assert alice.tries("admin", *words).code == 77


def _lock(olga: Person, user: str) -> None:
    olga.asks("admin", "lock", "user", user, "--reason", "a story")


@pytest.fixture
def unlocked(lab: Lab, olga: Person) -> Iterator[None]:
    yield
    for user in ("mallory", "eve"):
        olga.tries("admin", "unlock", "user", user)


@pytest.mark.long
@pytest.mark.spec("OPS-3")
def test_all_members_are_lost_and_the_state_is_restored(
    quiet_lab: Lab, olga: Person, unlocked: None
) -> None:
    del unlocked
    lab = quiet_lab
    before = olga.asks("admin", "quorum")
    _lock(olga, "mallory")
    name = olga.asks("admin", "backup")["name"]
    _lock(olga, "eve")
    nodes = {each["node"] for each in olga.asks("admin", "agents")["agents"]}

    for server in lab.servers:
        server.process.stop()
    for number, member in enumerate(lab.etcd.members):
        member.kill()
        lab.etcd.wipe(number)

    begun = time.monotonic()
    lab.etcd.up()
    config = str(lab.servers[0].config_file)
    argv = [str(EXECUTABLE), "restore", "--config", config, name]
    done = lab.control.room.run(argv, user=SERVER_USER, check=False)
    assert done.returncode == 0, done.stderr
    assert "It is sound." in done.stdout
    restored_s = time.monotonic() - begun
    again = lab.control.room.run(argv, user=SERVER_USER, check=False)
    assert again.returncode != 0
    for server in lab.servers:
        server.up()
    served_s = time.monotonic() - begun

    after = olga.asks("admin", "quorum")
    assert after["cluster"] == before["cluster"]
    assert after["epoch"] == before["epoch"] + 1
    # What changed after the backup is lost, and nothing else.
    assert [each["target"] for each in olga.asks("admin", "locks")["locks"]] == ["mallory"]
    eventually(lambda: linked(olga), lambda found: set(found) == set(NODES))
    linked_s = time.monotonic() - begun
    assert {each["node"] for each in olga.asks("admin", "agents")["agents"]} == nodes
    job = lab.sbatch("alice", wrap="echo after the restore")
    lab.wait_job_state(job, "COMPLETED")
    said = olga.tries("admin", "restore", name)
    assert (said.code, "from before a restore" in said.err) == (76, True)
    figures = {"restored_s": restored_s, "served_s": served_s, "linked_s": linked_s}
    rounded = {name: round(seconds, 1) for name, seconds in figures.items()}
    print(json.dumps({"lost": ["the lock made after the backup"], **rounded}))


@pytest.mark.long
@pytest.mark.spec("OPS-2")
def test_a_lost_member_is_replaced_while_the_others_serve(
    quiet_lab: Lab, olga: Person, unlocked: None
) -> None:
    del unlocked
    etcd = quiet_lab.etcd
    lost = ((etcd.leader() or 0) + 1) % 3
    etcd.members[lost].kill()
    etcd.wipe(lost)
    _lock(olga, "mallory")
    etcd.replace(lost)
    found = eventually(
        lambda: olga.asks("admin", "quorum"),
        lambda found: found["may_fail"] == 1 and not found["note"],
    )
    assert len(found["members"]) == 3
    # The new member has the state: it serves with one of the two others dead.
    other = next(number for number in range(3) if number not in {lost, etcd.leader()})
    etcd.members[other].kill()
    try:
        _lock(olga, "eve")
        targets = {each["target"] for each in olga.asks("admin", "locks")["locks"]}
        assert targets == {"mallory", "eve"}
    finally:
        etcd.members[other].up()
