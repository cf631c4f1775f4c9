"""The checks of the object store. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lattice.features.doctor.model import Check, Topic
from lattice.features.doctor.service.disks import room
from lattice.features.doctor.service.facts import FolderFacts, LockFacts
from lattice.features.doctor.service.measured import Inspected, milliseconds

_SLOW_S = 1.5

WRITE = Topic("objects.write", "the object store takes objects")
READ = Topic("objects.read", "the object store gives them back")
LISTING = Topic("objects.list", "the object store lists them")
LOCK = Topic("objects.lock", "nobody can delete the archive of the audit log")
SPACE = Topic("objects.space", "the object store has room")

_NONE = "no object store is configured: output of jobs is gone when they are over"
_LOCK = "Give the bucket object lock with a default retention in compliance mode."
_CHECK = "Check objects.url, its endpoint, keys and bucket policy, and that the store runs."


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    write: Inspected[bool]
    read: Inspected[bool]
    listing: Inspected[bool]
    folder: Inspected[FolderFacts]
    lock: Inspected[LockFacts]


def object_checks(facts: ObjectFacts) -> Iterator[Check]:
    yield _timed(WRITE, facts.write, "a probe was stored", "the stored probe was not accepted")
    if facts.write.value is None and not facts.write.off:
        yield READ.unknown("not tried: the probe was not stored")
        yield LISTING.unknown("not tried: the probe was not stored")
    else:
        yield _timed(READ, facts.read, "the probe was read", "another content came back")
        yield _timed(LISTING, facts.listing, "the probe was listed", "the probe is not listed")
    if facts.write.off:
        yield SPACE.off(_NONE)
    elif facts.folder.off:
        yield SPACE.off("the store is S3, which reports no free space")
    else:
        yield room(SPACE, facts.folder, "the folder of objects.url")
    yield _lock(facts.lock)


def _lock(found: Inspected[LockFacts]) -> Check:
    if found.off:
        return LOCK.off(found.off)
    if found.value is None:
        return LOCK.unknown(found.reason, found.hint)
    bucket, lock = found.value.bucket, found.value.lock
    weakness = lock.weakness(found.value.least_days)
    if not weakness:
        assert lock.mode is not None
        days = f"{lock.days:g} day{'' if lock.days == 1 else 's'}"
        return LOCK.ok(f"{bucket} keeps objects for {days} ({lock.mode.value})")
    evidence = f"{bucket} {weakness}"
    return (LOCK.failed if lock.mode is None else LOCK.warning)(evidence, _LOCK)


def _timed(topic: Topic, found: Inspected[bool], done: str, wrong: str) -> Check:
    if found.off:
        return topic.off(_NONE)
    if found.value is None:
        return topic.failed(found.reason, _CHECK)
    if not found.value:
        return topic.failed(wrong, _CHECK)
    evidence = f"{done} in {milliseconds(found.took_s)}"
    if found.took_s > _SLOW_S:
        return topic.warning(evidence, "Check the load of the object store and the network to it.")
    return topic.ok(evidence)
