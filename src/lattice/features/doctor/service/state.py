"""The checks of the agreed state. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from lattice.base.moment import age, duration
from lattice.base.sizes import size_text
from lattice.domain.quorum import QuorumMember, majority
from lattice.features.doctor.model import Check, Topic
from lattice.features.doctor.service.facts import BackupFacts, StateFacts
from lattice.features.doctor.service.measured import Inspected, milliseconds

STATE_SLOW_S = 0.5
_LARGE_BYTES = 1536 * 1024 * 1024
"""Three quarters of etcd's usual limit of 2 GiB."""
_LARGE_FILE_BYTES = 4 * 1024 * 1024 * 1024

READS = Topic("state.reads", "the agreed state can be read")
WRITES = Topic("state.writes", "the agreed state can be changed")
LASTS = Topic("state.lasts", "the state outlives the server")
MEMBERS = Topic("state.members", "every member of etcd is well")
REDUNDANCY = Topic("state.redundancy", "the state survives the loss of a member")
SIZE = Topic("state.size", "the database has room")
BACKUP = Topic("state.backup", "the newest backup is young enough")

_ETCD = "Run etcdctl endpoint health with the server's certificate, and start the members."
_BACKUP = "See the log of the servers for `backup`, then run lattice admin backup."
_SINGLE = "one server with a database of its own (--single): no high availability"
_PASSING = "the state is a file that ends with this server"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedFacts:
    store: StateFacts
    read: Inspected[bool]
    write: Inspected[bool]
    members: Inspected[tuple[QuorumMember, ...]]
    backups: Inspected[BackupFacts]
    now: datetime


def state_checks(facts: AgreedFacts) -> Iterator[Check]:
    local = facts.store.single or not facts.store.lasts
    remedy = "Check the disk of the state folder, then restart the server." if local else _ETCD
    yield _timed(READS, facts.read, "read", remedy)
    yield _timed(WRITES, facts.write, "written and read back", remedy)
    yield lasts(facts.store)
    yield members(facts)
    yield redundancy(facts)
    yield size(facts)
    yield backup(facts)


def _timed(topic: Topic, found: Inspected[bool], done: str, remedy: str) -> Check:
    if found.value is None:
        return topic.failed(found.reason, remedy)
    evidence = f"{done} in {milliseconds(found.took_s)}"
    if found.took_s > STATE_SLOW_S:
        return topic.warning(evidence, "Check the disks of the store: it waits for them to sync.")
    return topic.ok(evidence)


def lasts(store: StateFacts) -> Check:
    if store.lasts:
        return LASTS.ok("in a database file" if store.single else "in etcd")
    return LASTS.warning(
        f"{_PASSING}: nothing can be shared or locked",
        "Set quorum.endpoints, or start the server with --single DIR.",
    )


def members(facts: AgreedFacts) -> Check:
    found = facts.members
    if found.off:
        return MEMBERS.off(_without_etcd(facts.store))
    if found.value is None:
        return MEMBERS.unknown(found.reason, _ETCD)
    away = [each for each in found.value if each.reason]
    if away:
        named = "; ".join(f"{each.name}: {each.reason}" for each in away)
        return MEMBERS.failed(f"{len(away)} of {len(found.value)} members: {named}", _ETCD)
    lost = [each.name for each in found.value if not each.has_leader]
    if lost:
        return MEMBERS.failed(f"no leader is known to {', '.join(lost)}", _ETCD)
    leader = next((each.name for each in found.value if each.is_leader), "elsewhere")
    versions = ", ".join(sorted({each.version for each in found.value}))
    return MEMBERS.ok(f"{len(found.value)} members, etcd {versions}, leader {leader}")


def redundancy(facts: AgreedFacts) -> Check:
    found = facts.members
    if found.off:
        return REDUNDANCY.off(_without_etcd(facts.store))
    if found.value is None:
        return REDUNDANCY.unknown(found.reason, _ETCD)
    there = sum(not each.reason for each in found.value)
    spare = there - majority(len(found.value))
    evidence = f"{there} of {len(found.value)} members answer; {max(spare, 0)} more may fail"
    if spare > 0:
        return REDUNDANCY.ok(evidence)
    if len(found.value) < 3:
        return REDUNDANCY.warning(evidence, "Name three members of etcd in quorum.endpoints.")
    return REDUNDANCY.failed(evidence, _ETCD)


def size(facts: AgreedFacts) -> Check:
    if facts.members.off:
        size_bytes = facts.store.size_bytes
        if size_bytes is None:
            return SIZE.unknown("the size of the database file was not read")
        evidence = f"database file of {size_text(size_bytes)}"
        if size_bytes > _LARGE_FILE_BYTES:
            return SIZE.warning(evidence, "Ask what fills it: the state has a few MiB usually.")
        return SIZE.ok(evidence)
    sizes = [each.size_bytes for each in facts.members.value or () if not each.reason]
    if not sizes:
        return SIZE.unknown(facts.members.reason or "no member of etcd answers", _ETCD)
    evidence = f"largest database of a member: {size_text(max(sizes))}"
    if max(sizes) > _LARGE_BYTES:
        return SIZE.warning(
            evidence, "Compact and defragment etcd: etcdctl compact, then etcdctl defrag."
        )
    return SIZE.ok(evidence)


def backup(facts: AgreedFacts) -> Check:
    """Compare the age of the newest backup with twice the schedule."""
    found = facts.backups
    if found.off:
        return BACKUP.off("no backups are scheduled (backup.every_h)")
    if found.value is None:
        return BACKUP.unknown(found.reason, _BACKUP)
    every = duration(found.value.every_h * 3600)
    if found.value.newest is None:
        return BACKUP.failed(f"there is none in {found.value.location}", _BACKUP)
    age_s = max((facts.now - found.value.newest).total_seconds(), 0)
    evidence = f"the newest is {age(age_s)} old; one is due every {every}"
    if age_s > 2 * found.value.every_h * 3600:
        return BACKUP.failed(evidence, _BACKUP)
    return BACKUP.ok(evidence)


def _without_etcd(store: StateFacts) -> str:
    return _SINGLE if store.single else f"{_PASSING}: no high availability"
