"""Where the port `ObjectStore` is tried: in memory, in a folder, on a spoken and on a real S3.

Every store stands on its own prefix or folder. `cut_off` is what an accident would do.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.doorway import Doorway
from lab.seaweedfs import ACCESS_KEY, BUCKET, SECRET_KEY
from lattice.adapters.objects import CallLimits
from lattice.adapters.objects.folder import FolderObjectStore
from lattice.adapters.objects.s3 import S3Address, S3ObjectStore
from lattice.base.clock import SystemClock
from lattice.domain.objects import ObjectStore
from lattice.domain.sealed import DataKey
from lattice.features.logs.service.sealed_objects import SealedObjects
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.s3_server import SpokenS3

KINDS = [
    "memory",
    "folder",
    "spoken",
    pytest.param("seaweedfs", marks=pytest.mark.lab),
    "sealed folder",
    "sealed spoken",
    pytest.param("sealed seaweedfs", marks=pytest.mark.lab),
]


@dataclass
class Place:
    """A store, and how to take it away."""

    store: ObjectStore
    cut_off: Callable[[], None]


@asynccontextmanager
async def place_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Place]:
    if kind.startswith("sealed "):
        async with place_of(kind.removeprefix("sealed "), request, folder) as under:
            yield _sealed(under)
    elif kind == "memory":
        fake = InMemoryObjectStore(SystemClock())
        yield Place(fake, lambda: setattr(fake, "away", True))
    elif kind == "folder":
        root = folder / "objects"
        store = FolderObjectStore(root)

        def rename() -> None:
            root.rename(folder / "gone")

        yield Place(store, rename)
    elif kind == "spoken":
        async with SpokenS3(BUCKET) as spoken:
            place = s3_place(spoken.address, folder)
            gone = S3ObjectStore(s3_place("127.0.0.1:1", folder), SystemClock())
            real = S3ObjectStore(place, SystemClock())
            yield _switched(real, gone)
    else:
        doorway: Doorway = request.getfixturevalue("seaweed_doorway")
        hasty = CallLimits(small_s=2.0, slowest_bytes_per_s=50e6)
        place = s3_place(doorway.addresses[0], folder)
        shut = S3ObjectStore(place, SystemClock(), hasty)
        try:
            yield _switched(S3ObjectStore(place, SystemClock()), shut, doorway.shut)
        finally:
            doorway.open()


class OneKey:
    """The same data key for every allocation."""

    def __init__(self) -> None:
        self.key = DataKey.new()

    async def existing(self, ref: str) -> DataKey:  # noqa: ARG002
        return self.key

    async def cluster(self) -> str:
        return "c1"


def _sealed(under: Place) -> Place:
    """What is put there is sealed in the store below."""
    keys = OneKey()
    place = Place(SealedObjects(under.store, keys), lambda: None)

    def cut_off() -> None:
        under.cut_off()
        place.store = SealedObjects(under.store, keys)

    place.cut_off = cut_off
    return place


def s3_place(address: str, folder: Path) -> S3Address:
    """A place in the lab's bucket that nobody else uses."""
    access, secret = folder / "s3.access", folder / "s3.secret"
    access.write_text(f"{ACCESS_KEY}\n")
    secret.write_text(f"{SECRET_KEY}\n")
    return S3Address(
        bucket=BUCKET,
        prefix=f"try/{uuid.uuid4().hex}",
        endpoint=f"http://{address}",
        region="us-east-1",
        access_key_file=access,
        secret_key_file=secret,
        allow_http=True,
    )


def _switched(
    store: ObjectStore, away: ObjectStore, act: Callable[[], None] | None = None
) -> Place:
    """A place whose store is another one, without patience, once it is cut off."""
    place = Place(store, lambda: None)

    def cut_off() -> None:
        place.store = away
        if act is not None:
            act()

    place.cut_off = cut_off
    return place
