"""The checks of what seals sensitive work: the site's keys, and its bucket. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lattice.features.doctor.model import Check, Topic
from lattice.features.doctor.service.facts import RetentionFacts
from lattice.features.doctor.service.measured import Inspected, milliseconds

KEYS = Topic("objects.site_keys", "the site's keys wrap data keys, and unwrap them")
ROTATION = Topic("objects.rotation", "all data keys are wrapped by the newest key of the site")
BUCKET = Topic("objects.sensitive", "the sensitive bucket takes objects and gives them back")
RETENTION = Topic("objects.retention", "the sensitive bucket keeps nothing beyond its retention")

_NONE = "no keys are configured: the site has no sensitive work"
_NO_BUCKET = "no sensitive bucket is configured: the site has no sensitive work"
_KEYS_REMEDY = (
    "Check sensitive.keys_file, or the token of sensitive.pkcs11_module: meanwhile nothing of new "
    "sensitive jobs is captured."
)
_ROTATION_REMEDY = "Put the older key back until all data keys are wrapped by the newest one."
_RETENTION_REMEDY = "Give the bucket a shorter object lock, or logs.retention_days as many days."
_BUCKET_REMEDY = "Check sensitive.bucket, its policy, and that the store runs."


@dataclass(frozen=True, slots=True, kw_only=True)
class SealingFacts:
    keys: Inspected[bool]
    """True if a secret was the same after it was wrapped and unwrapped."""
    older: Inspected[int]
    """How many data keys are wrapped by an older key."""
    bucket: Inspected[bool]
    lock: Inspected[RetentionFacts]
    trouble: str = ""
    """Why data keys could not be wrapped again."""


def sealing_checks(facts: SealingFacts) -> Iterator[Check]:
    yield _keys(facts.keys)
    yield _rotation(facts)
    yield _bucket(facts.bucket)
    yield _retention(facts.lock)


def _keys(found: Inspected[bool]) -> Check:
    if found.off:
        return KEYS.off(_NONE)
    if found.value is None:
        return KEYS.failed(found.reason, found.hint or _KEYS_REMEDY)
    if not found.value:
        return KEYS.failed("another secret came back", _KEYS_REMEDY)
    return KEYS.ok(f"a secret was wrapped and unwrapped in {milliseconds(found.took_s)}")


def _rotation(facts: SealingFacts) -> Check:
    found = facts.older
    if found.off:
        return ROTATION.off(_NONE)
    if found.value is None:
        return ROTATION.unknown(found.reason, found.hint)
    if not found.value:
        return ROTATION.ok("none is wrapped by an older one")
    evidence = f"{found.value} are wrapped by an older one"
    if facts.trouble:
        return ROTATION.warning(f"{evidence}: {facts.trouble}", _ROTATION_REMEDY)
    return ROTATION.ok(f"{evidence}; a server wraps them again within ten minutes")


def _bucket(found: Inspected[bool]) -> Check:
    if found.off:
        return BUCKET.off(_NO_BUCKET)
    if found.value is None:
        return BUCKET.failed(found.reason, found.hint or _BUCKET_REMEDY)
    if not found.value:
        return BUCKET.failed("another content came back", _BUCKET_REMEDY)
    return BUCKET.ok(f"a probe was stored and read in {milliseconds(found.took_s)}")


def _retention(found: Inspected[RetentionFacts]) -> Check:
    if found.off:
        return RETENTION.off(found.off)
    if found.value is None:
        return RETENTION.unknown(found.reason, found.hint)
    facts = found.value
    if facts.lock.mode is None:
        return RETENTION.ok(f"{facts.bucket} has no object lock with a default retention")
    evidence = f"{facts.bucket} keeps objects for {facts.lock.days:g} days"
    if facts.lock.days <= facts.removed_days:
        return RETENTION.ok(f"{evidence}, and nothing is removed before {facts.removed_days}")
    evidence += f", and they are to be removed after {facts.removed_days}"
    return RETENTION.warning(f"{evidence}: till then they stay, without a key", _RETENTION_REMEDY)
