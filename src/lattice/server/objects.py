"""The object store as the server has it: S3, a folder, or none. Opened here, used by features."""

from __future__ import annotations

from pathlib import Path

from lattice.adapters.objects.folder import FolderObjectStore
from lattice.adapters.objects.s3 import S3ObjectStore, S3Place
from lattice.base.clock import Clock, SystemClock
from lattice.domain.objects import ObjectStore
from lattice.server.objectsection import ObjectsSection

ANY_REGION = "us-east-1"
"""What stores without regions expect to be signed for."""


def open_objects(
    objects: ObjectsSection, single: Path | None, clock: Clock | None = None
) -> ObjectStore | None:
    """None where neither a store nor a folder was named. Raises `ConfigurationError`.

    The section has been judged: what S3 needs is there. Nothing is asked of the store yet, so a
    server starts while it is away.
    """
    url = objects.url
    if url is None:
        return None if single is None else FolderObjectStore(single / "objects")
    if url.folder is not None:
        return FolderObjectStore(url.folder)
    assert objects.access_key_file is not None
    assert objects.secret_key_file is not None
    endpoint = objects.endpoint or f"https://s3.{objects.region}.amazonaws.com"
    place = S3Place(
        bucket=url.bucket,
        prefix=url.prefix,
        endpoint=endpoint.rstrip("/"),
        region=objects.region or ANY_REGION,
        access_key_file=objects.access_key_file,
        secret_key_file=objects.secret_key_file,
        ca=objects.ca,
        allow_http=endpoint.startswith("http://"),
    )
    return S3ObjectStore(place, clock or SystemClock())
