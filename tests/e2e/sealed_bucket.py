"""The sensitive bucket of a lab, as whoever has the key of the store sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab.doorway import Doorway
from lab.seaweedfs import SENSITIVE_BUCKET
from lattice.adapters.objects.s3 import S3ObjectStore
from lattice.base.clock import SystemClock
from tests.contract.stores import s3_place
from tests.eventually import eventually_async


def sensitive_bucket(doorway: Doorway, folder: Path) -> S3ObjectStore:
    """`folder` takes the files with the credentials."""
    place = s3_place(doorway.addresses[0], folder)
    return S3ObjectStore(replace(place, prefix="", bucket=SENSITIVE_BUCKET), SystemClock())


async def objects_of(store: S3ObjectStore, job: int) -> dict[str, bytes]:
    """The stored output of a job, by key."""
    found = [each.key async for each in store.listing("") if f"/{job}/logs/" in each.key]
    return {key: await store.read(key) for key in found}


async def summed_up(store: S3ObjectStore, job: int) -> dict[str, bytes]:
    """The same, once all of it is there."""

    async def read() -> dict[str, bytes]:
        return await objects_of(store, job)

    def is_whole(found: dict[str, bytes]) -> bool:
        return any(each.endswith("metadata.json") for each in found)

    return await eventually_async(read, is_whole, pause_s=0.5)
