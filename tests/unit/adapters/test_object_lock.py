"""What a store answers about the object lock of a bucket."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest

from lattice.adapters.objects.lock import S3LockReader, lock_in, retention_in
from lattice.adapters.objects.s3 import S3Address
from lattice.base.errors import Unavailable
from lattice.domain.object_lock import LockMode, ObjectLock
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.manual_clock import ManualClock

CONFIGURATION = (
    b'<?xml version="1.0"?><ObjectLockConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>"
    b"<Mode>COMPLIANCE</Mode><Years>7</Years></DefaultRetention></Rule></ObjectLockConfiguration>"
)
NOT_FOUND = b"<Error><Code>ObjectLockConfigurationNotFoundError</Code></Error>"
SEGMENT = "audit/abc/1-2-3.zst"
RETENTION = {
    "x-amz-object-lock-mode": "COMPLIANCE",
    "x-amz-object-lock-retain-until-date": "2026-11-21T10:00:00Z",
    "last-modified": "Thu, 19 Nov 2026 22:00:00 GMT",
}


class Store:
    """Answers as it is set, and notes what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[httpx2.Request] = []
        self.configuration = httpx2.Response(200, content=CONFIGURATION)
        self.object = httpx2.Response(200, headers=RETENTION)
        for name in ("access", "secret"):
            (folder / name).write_text(f"{name}\n")
        address = S3Address(
            bucket="site-audit",
            endpoint="https://s3.example:9000",
            region="eu-1",
            access_key_file=folder / "access",
            secret_key_file=folder / "secret",
        )
        clock = ManualClock(datetime(2026, 11, 19, 12, 0, tzinfo=UTC))
        self.objects = InMemoryObjectStore(clock)
        transport = httpx2.MockTransport(self._answer)
        self.reader = S3LockReader(address, self.objects, "audit/", clock, transport)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        return self.configuration if request.url.query else self.object


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.mark.spec("AUDIT-2")
async def test_the_configuration_of_the_bucket_is_asked_for(store: Store) -> None:
    assert await store.reader.read() == ObjectLock(LockMode.COMPLIANCE, 2555)
    (request,) = store.asked
    assert str(request.url) == "https://s3.example:9000/site-audit?object-lock="
    assert request.headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=access/20261119/eu-1/s3/aws4_request, "
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature="
        + request.headers["authorization"].rpartition("=")[2]
    )
    assert "secret" not in str(request.headers)


async def test_a_bucket_without_a_lock_has_none(store: Store) -> None:
    store.configuration = httpx2.Response(404, content=NOT_FOUND)
    assert await store.reader.read() == ObjectLock()


async def test_a_key_without_that_right_sees_the_retention_of_an_object(store: Store) -> None:
    store.configuration = httpx2.Response(403, content=b"<Error><Code>AccessDenied</Code></Error>")
    with pytest.raises(Unavailable, match="no object shows it"):
        await store.reader.read()
    await store.objects.put_new(SEGMENT, b"segment")
    assert await store.reader.read() == ObjectLock(LockMode.COMPLIANCE, 1.5)
    assert (store.asked[-1].method, store.asked[-1].url.path) == ("HEAD", f"/site-audit/{SEGMENT}")
    store.object = httpx2.Response(200, headers={"last-modified": RETENTION["last-modified"]})
    assert await store.reader.read() == ObjectLock()


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx2.Response(404, content=b"<Error><Code>NoSuchBucket</Code></Error>"),
        lambda: httpx2.Response(501),
        lambda: httpx2.Response(307, headers={"location": "https://other.example/"}),
    ],
    ids=["no bucket", "not implemented", "elsewhere"],
)
async def test_other_answers_leave_it_unknown(
    store: Store, answer: Callable[[], httpx2.Response]
) -> None:
    store.configuration = answer()
    with pytest.raises(Unavailable):
        await store.reader.read()
    assert len(store.asked) == 1, "nothing is followed"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\x00",
        CONFIGURATION.replace(b"Enabled<", b"Disabled<"),
        CONFIGURATION.replace(b"COMPLIANCE", b"NONE"),
        CONFIGURATION.replace(b"<Years>7</Years>", b""),
        b"<ObjectLockEnabled>Enabled</ObjectLockEnabled>",
    ],
)
def test_what_is_no_lock_is_none(text: bytes) -> None:
    assert lock_in(text) == ObjectLock()


@pytest.mark.parametrize("name", sorted(RETENTION))
def test_a_retention_without_a_part_is_none(name: str) -> None:
    assert retention_in(RETENTION | {name: "x"}) == ObjectLock()


def test_a_lock_that_is_good_enough_has_no_weakness() -> None:
    assert ObjectLock(LockMode.COMPLIANCE, 2555).weakness(2555) == ""
    assert "governance" in ObjectLock(LockMode.GOVERNANCE, 2555).weakness(2555)
    assert "1 days" in ObjectLock(LockMode.COMPLIANCE, 1).weakness(2555)
    assert "no object lock" in ObjectLock().weakness(0)
