"""At the end of the retention the key of a sensitive job is destroyed: then nobody can read it.

A retention has days, so a proxy before the object store makes what one job wrote look older, and
the record of its key gets an older date. All else is as on a site.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import yaml

from lab.addresses import SEAWEED_S3_PORT
from lab.doorway import Doorway
from lab.laboratory import Lab
from lattice.domain.sealed import DataKey, binding, open_object
from lattice.features.logs.service.retention import TURN
from lattice.foundation.data_keys import ENDED_MOST_S
from tests.e2e.marked import MarkedJob, files_with, memories_with, unpacked
from tests.e2e.people import Person
from tests.e2e.put_right import administrator
from tests.e2e.sealed_bucket import objects_of, sensitive_bucket, summed_up
from tests.e2e.sensitive_jobs import (
    claimed,
    data_key,
    key_record,
    key_records,
    put_key_record,
    sensitive_options,
)
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]

_PROXY_PORT = 8399
_DAYS = 3
_CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def doorway(lab: Lab) -> Iterator[Doorway]:
    with Doorway(lab.network, (SEAWEED_S3_PORT,)) as opened:
        yield opened


def _opened(cluster: str, key: DataKey, objects: dict[str, bytes]) -> bytes:
    chunks = (
        open_object(key, binding("object", cluster, name), body)
        for name, body in objects.items()
        if name.endswith(".zst")
    )
    return b"".join(unpacked(each) for each in chunks)


@contextmanager
def _aged(lab: Lab, job: int) -> Iterator[None]:
    """What the job wrote looks some days older to all servers."""
    upstream = lab.seaweedfs.endpoint.removeprefix("http://")
    words = ["-m", "tests.e2e.aged_store", str(_PROXY_PORT), upstream, str(job), str(_DAYS)]
    proxy = lab.control.room.popen([sys.executable, *words], cwd=str(_CHECKOUT))
    try:
        assert proxy.stdout is not None
        assert proxy.stdout.readline() == "ready\n"
        yield
    finally:
        proxy.kill()
        proxy.communicate()


@contextmanager
def _retention_of_a_day(lab: Lab) -> Iterator[None]:
    """The first server that starts sweeps. It is killed after the entry, and starts again."""
    before = {each: each.config_file.read_text() for each in lab.servers}
    first, second = lab.servers
    try:
        for server, text in before.items():
            sections = yaml.safe_load(text)
            sections["objects"]["endpoint"] = f"http://127.0.0.1:{_PROXY_PORT}"
            sections["logs"] = {"retention_days": 1}
            server.stop()
            server.write_config(sections)
        lab.etcd.ctl("del", f"/lattice/{TURN}")
        first.environment["LATTICE_FAILPOINT"] = "keys.destroy.audited"
        first.process.start()
        eventually(lambda: not first.process.alive)
        del first.environment["LATTICE_FAILPOINT"]
        # The next sweep is hours later.
        lab.etcd.ctl("del", f"/lattice/{TURN}")
        second.start()
        first.start()
        yield
    finally:
        first.environment.pop("LATTICE_FAILPOINT", None)
        for server, text in before.items():
            server.stop()
            server.write_config(yaml.safe_load(text))
            server.start()


@pytest.mark.spec("LOG-8", "LOG-9", "AUDIT-3")
@pytest.mark.threat("sensitive", "sensitive-memory")
async def test_after_the_retention_nobody_can_read_it_and_the_reason_is_told(
    sensitive_lab: Lab, doorway: Doorway, tmp_path: Path
) -> None:
    lab, bucket, olga = (
        sensitive_lab,
        sensitive_bucket(doorway, tmp_path),
        administrator(sensitive_lab),
    )
    with claimed(lab) as alice:
        old, recent = (MarkedJob(lab, *sensitive_options(alice)) for _ in range(2))
        for each in (old, recent):
            lab.wait_job_state(each.id, "RUNNING")
            eventually(
                lambda each=each: alice.tries("logs", str(each.id)).out.count(each.marker) == 200
            )
        ref, record = key_record(lab, old.id)
        cluster, key = data_key(lab, ref)
        assert memories_with(lab, key.secret, ("n1",)), "the control: the key is found in memory"
        for each in (old, recent):
            lab.run_as("alice", ["touch", f"go-on-{each.id}"])
            lab.wait_job_state(each.id, "COMPLETED")
            await summed_up(bucket, each.id)
        copies = await objects_of(bucket, old.id)
        assert old.marker.encode() in _opened(cluster, key, copies), "the control: the key opens it"

        earlier = record.made - timedelta(days=_DAYS)
        put_key_record(lab, ref, msgspec.structs.replace(record, made=earlier))
        with _aged(lab, old.id), _retention_of_a_day(lab):
            eventually(lambda: ref not in key_records(lab))
            alice.logged_in("sensitive:claim")
            _is_gone(lab, alice, old)
            assert await objects_of(bucket, old.id) == {}
            rows = alice.asks("audit", "query", "--act", "key-destroyed")["rows"]
            (sentence,) = [each["sentence"] for each in rows if str(old.id) in each["sentence"]]
            assert "the retention of 1 day is over" in sentence

            # Somebody puts copies of the objects back: they have no key any more.
            for name, body in copies.items():
                await bucket.put(name, body)
            _is_gone(lab, alice, old)
            assert alice.tries("logs", str(recent.id)).out.count(recent.marker) == 400
        assert olga.tries("audit", "verify").code == 0
        _is_gone(lab, alice, old)
        eventually(
            lambda: memories_with(lab, key.secret, ("n1", "n2", "n3")) == [],
            patience_s=ENDED_MOST_S + 60,
        )
        secret = [key.secret, key.secret.hex().encode(), old.marker.encode()]
        assert files_with(lab, secret, except_for=[old.file]) == []


def _is_gone(lab: Lab, alice: Person, job: MarkedJob) -> None:
    """Each server says why, in the same words."""
    for server in lab.servers:
        env = {**alice.bearer, "LATTICE_API_URL": server.url}
        for words in ((), ("--grep", "line"), ("--tail", "3")):
            said = alice.lattice("logs", str(job.id), *words, env=env)
            assert said.code == 76, said
            assert job.marker not in said.out + said.err
            assert "were removed after 1 day by the retention of tenant" in said.err
