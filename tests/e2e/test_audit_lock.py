"""Archived entries of the audit log can be neither removed nor overwritten while the lock lasts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest

from lab.addresses import ETCD_CLIENT_PORTS, SEAWEED_S3_PORT
from lab.doorway import Doorway
from lab.laboratory import Lab
from lab.seaweedfs import ADMIN_KEYS, AUDIT_BUCKET, SENSITIVE_BUCKET, SERVER_KEYS
from lattice.access.grants import GrantSigner
from lattice.adapters.etcd.members import EtcdTls, Members
from lattice.adapters.etcd.store import store_of
from lattice.adapters.objects.s3 import S3ObjectStore
from lattice.base.clock import SystemClock
from lattice.base.errors import STATUS, RateLimited, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.audit import AuditAct, AuditEvent
from lattice.features.audit.service.archive import RETAINED_ENTRIES, SEGMENT_ENTRIES
from lattice.server.agreed_parts import open_audit_log
from tests.contract.stores import s3_place
from tests.e2e.people import Person
from tests.e2e.put_right import administrator
from tests.e2e.test_doctor import examined
from tests.eventually import eventually, eventually_async

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(600)]

_AT_ONCE = 256
_VERSION = re.compile(r"<VersionId>([^<]+)</VersionId>")


@pytest.fixture
def archive(lab: Lab, tmp_path: Path) -> Iterator[S3ObjectStore]:
    """The bucket of the audit log, with the key of the servers."""
    with Doorway(lab.network, (SEAWEED_S3_PORT,)) as doorway:
        place = s3_place(doorway.addresses[0], tmp_path)
        yield S3ObjectStore(replace(place, prefix="", bucket=AUDIT_BUCKET), SystemClock())


@pytest.fixture
def etcd(lab: Lab) -> Iterator[Doorway]:
    with Doorway(lab.network, ETCD_CLIENT_PORTS) as doorway:
        yield doorway


async def _record(lab: Lab, etcd: Doorway, count: int) -> None:
    """Entries of one more server of this site; to make so many by commands would take an hour."""
    clock, client = SystemClock(), lab.etcd.client
    tls = EtcdTls(client.authority, client.certificate, client.key)
    members = Members([f"https://{each}" for each in etcd.addresses], tls, clock)
    signer = GrantSigner(SigningKey.load(lab.layout.state / "grant.key"), clock)
    async with store_of(members, clock) as state:
        log = open_audit_log(state, clock, signer)
        running = asyncio.create_task(log.run())
        try:
            for first in range(0, count, _AT_ONCE):
                events = (_event(number) for number in range(first, first + _AT_ONCE))
                await asyncio.gather(*map(log.require, events))
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


def _event(number: int) -> AuditEvent:
    return AuditEvent(
        event=f"lock-{number}", act=AuditAct.LOG_READ, user="alice", detail="for the archive"
    )


async def _segments(archive: S3ObjectStore) -> dict[str, bytes]:
    found = [each.key async for each in archive.listing("audit/")]
    return {key: await archive.read(key) for key in found}


@pytest.mark.spec("AUDIT-2")
@pytest.mark.threat("audit-log")
async def test_a_segment_of_the_audit_log_stays_while_its_lock_lasts(
    lab: Lab, archive: S3ObjectStore, etcd: Doorway
) -> None:
    olga = administrator(lab)
    await _record(lab, etcd, RETAINED_ENTRIES + SEGMENT_ENTRIES)
    segments = await eventually_async(lambda: _segments(archive), pause_s=1)
    (key, body), *_ = segments.items()
    path = f"/{AUDIT_BUCKET}/{key}"
    _cannot_be_removed(lab, path)

    # What hides it is named, and the segment is there as it was.
    for keys in (SERVER_KEYS, ADMIN_KEYS):
        lab.seaweedfs.ask(keys, "PUT", path, body=b"nothing happened")
        assert _version(lab, path, _oldest(lab, key)) == body
        assert _verified(olga) == 1
        with suppress(Unavailable):
            await archive.delete(key)
        assert _version(lab, path, _oldest(lab, key)) == body
        _restore(lab, key, path)
        assert await archive.read(key) == body
        assert _verified(olga) == 0
    _is_well(olga)

    # The control: a bucket without a lock lets it go.
    other = f"/{SENSITIVE_BUCKET}/tried"
    assert lab.seaweedfs.ask(SERVER_KEYS, "PUT", other, body=body).status == HTTPStatus.OK
    assert lab.seaweedfs.ask(SERVER_KEYS, "DELETE", other).status == HTTPStatus.NO_CONTENT
    assert lab.seaweedfs.ask(SERVER_KEYS, "GET", other).status == HTTPStatus.NOT_FOUND


def _verified(olga: Person) -> int:
    """The exit code; only so many are allowed in a minute."""
    too_many = STATUS[RateLimited].exit
    return eventually(
        lambda: olga.tries("audit", "verify", "--since", "1s").code,
        lambda code: code != too_many,
        pause_s=2,
    )


def _cannot_be_removed(lab: Lab, path: str) -> None:
    """Not by an administrator of the store either, whatever the request claims."""
    version = _oldest(lab, path.removeprefix(f"/{AUDIT_BUCKET}/"))
    past = b"<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>2000-01-01T00:00:00Z"
    past += b"</RetainUntilDate></Retention>"
    bypass = {"x-amz-bypass-governance-retention": "true"}
    for keys in (SERVER_KEYS, ADMIN_KEYS):
        for headers in ({}, bypass):
            removed = lab.seaweedfs.ask(
                keys, "DELETE", path, query={"versionId": version}, headers=headers
            )
            assert removed.status == HTTPStatus.FORBIDDEN, removed
            shortened = lab.seaweedfs.ask(
                keys, "PUT", path, query={"retention": ""}, headers=headers, body=past
            )
            assert shortened.status >= HTTPStatus.BAD_REQUEST, shortened
    whole = lab.seaweedfs.ask(ADMIN_KEYS, "DELETE", f"/{AUDIT_BUCKET}")
    assert whole.status >= HTTPStatus.BAD_REQUEST, whole


def _versions(lab: Lab, key: str) -> list[str]:
    """Of one object, the newest first; markers of a deletion too."""
    asked = {"versions": "", "prefix": key}
    answer = lab.seaweedfs.ask(ADMIN_KEYS, "GET", f"/{AUDIT_BUCKET}", query=asked)
    assert answer.status == HTTPStatus.OK, answer
    return _VERSION.findall(answer.body.decode())


def _oldest(lab: Lab, key: str) -> str:
    return _versions(lab, key)[-1]


def _version(lab: Lab, path: str, version: str) -> bytes:
    return lab.seaweedfs.ask(SERVER_KEYS, "GET", path, query={"versionId": version}).body


def _restore(lab: Lab, key: str, path: str) -> None:
    """As an administrator puts the segment back: a copy of the oldest version."""
    body = _version(lab, path, _oldest(lab, key))
    assert lab.seaweedfs.ask(ADMIN_KEYS, "PUT", path, body=body).status == HTTPStatus.OK


def _is_well(olga: Person) -> None:
    (check,) = [each for each in examined(olga)["checks"] if each["id"] == "objects.lock"]
    assert check["state"] == "ok", check
    assert check["evidence"] == f"{AUDIT_BUCKET} keeps objects for 1 day (COMPLIANCE)"
