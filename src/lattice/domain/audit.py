"""The audit log: which events it records, and the one encoding of an entry. Pure.

An entry is a line of JSON in ASCII, with sorted keys and no spaces. The same entry always has the
same bytes, because the chain (`audit_chain`) hashes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

from lattice.base.errors import Unavailable

LONGEST_EVENT = 64
LONGEST_NAME = 200
LONGEST_DETAIL = 500
LARGEST_ENTRY_BYTES = 16 * 1024
TRUSTS = "trusts"
"""The first word in the detail of a key change; the public keys in hex follow."""
_CUT = "…"
_EVENT = re.compile(rf"[!-~]{{1,{LONGEST_EVENT}}}")


class AuditAct(StrEnum):
    """What can be recorded. The values are part of the encoding: one is never renamed."""

    CLAIM = "claim"
    RELEASE = "release"
    ALLOCATION_START = "allocation-start"
    ALLOCATION_END = "allocation-end"
    ATTACH_START = "attach-start"
    ATTACH_END = "attach-end"
    LOG_READ = "log-read"
    METRIC_READ = "metric-read"
    RECORDING_READ = "recording-read"
    RECORDING_REMOVED = "recording-removed"
    MODE_SWITCH = "mode-switch"
    SHARE = "share"
    UNSHARE = "unshare"
    LOCK = "lock"
    UNLOCK = "unlock"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    DISABLE = "disable"
    ENABLE = "enable"
    ENROL = "enrol"
    REVOKE = "revoke"
    RESTORE_NODE = "restore-node"
    TENANT_CREATE = "tenant-create"
    TENANT_UPDATE = "tenant-update"
    SUBMIT = "submit"
    CANCEL = "cancel"
    BACKUP = "backup"
    RESTORE = "restore"
    AUDIT_READ = "audit-read"
    KEY_CHANGE = "key-change"
    KEY_DESTROYED = "key-destroyed"
    GAP = "gap"


SENTENCES: Mapping[AuditAct, str] = {
    AuditAct.CLAIM: "{who} claimed {target}",
    AuditAct.RELEASE: "{who} released {target}",
    AuditAct.ALLOCATION_START: "{target} started",
    AuditAct.ALLOCATION_END: "{target} ended",
    AuditAct.ATTACH_START: "{who} attached to {target}",
    AuditAct.ATTACH_END: "the terminal of {who} in {target} ended",
    AuditAct.LOG_READ: "{who} read output of {target}",
    AuditAct.METRIC_READ: "{who} read measurements of {target}",
    AuditAct.RECORDING_READ: "{who} replayed a recording of {target}",
    AuditAct.RECORDING_REMOVED: "a recording of {target} was removed",
    AuditAct.MODE_SWITCH: "{who} switched the telemetry of {target}",
    AuditAct.SHARE: "{who} shared {target}",
    AuditAct.UNSHARE: "{who} ended a share of {target}",
    AuditAct.LOCK: "{who} locked {target}",
    AuditAct.UNLOCK: "{who} unlocked {target}",
    AuditAct.DRAIN: "{who} drained {target}",
    AuditAct.UNDRAIN: "{who} undrained {target}",
    AuditAct.DISABLE: "{who} disabled {target}",
    AuditAct.ENABLE: "{who} enabled {target}",
    AuditAct.ENROL: "{who} made an enrolment for {target}",
    AuditAct.REVOKE: "{who} revoked the certificates of {target}",
    AuditAct.RESTORE_NODE: "{who} admitted {target} again",
    AuditAct.TENANT_CREATE: "{who} made the tenant {target}",
    AuditAct.TENANT_UPDATE: "{who} changed limits of the tenant {target}",
    AuditAct.SUBMIT: "{who} submitted {target}",
    AuditAct.CANCEL: "{who} cancelled {target}",
    AuditAct.BACKUP: "{who} made a backup of the state",
    AuditAct.RESTORE: "{who} asked to restore the state",
    AuditAct.AUDIT_READ: "{who} read the audit log",
    AuditAct.KEY_CHANGE: "the log trusts a new signing key",
    AuditAct.KEY_DESTROYED: "the data key of {target} was destroyed",
    AuditAct.GAP: "events were lost before they were recorded",
}
"""One sentence for each act."""


class AuditOutcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """An act to record. Texts that are too long are cut."""

    event: str
    """An id from the caller: a retry with the same id gives the same entry."""
    act: AuditAct
    outcome: AuditOutcome = AuditOutcome.DONE
    sub: str = ""
    """The actor: its subject, Unix user, role and tenant."""
    user: str = ""
    role: str = ""
    tenant: str = ""
    allocation: str = ""
    """The identity of an allocation: the id with the time of its first submit."""
    owner: str = ""
    """The Unix user of the allocation."""
    node: str = ""
    of_tenant: str = ""
    """The tenant that the act concerns."""
    target: str = ""
    """Any other target, such as a lock."""
    address: str = ""
    detail: str = ""

    def __post_init__(self) -> None:
        if not _EVENT.fullmatch(self.event):
            raise ValueError(f"{self.event[:LONGEST_EVENT]!r} can't be the id of an event")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry(AuditEvent):
    """A recorded event with its number and time."""

    sequence: int
    time: datetime

    @property
    def who(self) -> str:
        return self.user or self.sub or "lattice"


class BadEntry(ValueError):
    """The bytes of an entry can't be parsed."""


class SensitiveAuditRequired(Unavailable):
    """An act is refused because its entry can't be committed first."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"SensitiveAuditRequired: this act can't be recorded now, so it is refused: {problem}",
            hint="Try again in a minute. If it lasts, the administrators run `lattice doctor`.",
        )


class AuditTrail(Protocol):
    """Where acts are recorded."""

    async def require(self, event: AuditEvent) -> AuditEntry:
        """Return after the entry is committed. Raises `SensitiveAuditRequired`."""

    def note(self, event: AuditEvent) -> None:
        """Record it soon, without waiting. A lost event is counted and recorded as a gap."""


class AuditEntries(Protocol):
    """Reads single entries of the log."""

    async def entry(self, sequence: int) -> AuditEntry | None:
        """The entry with this number, under a signature that this server trusts.

        None if the log has none. Raises `Unavailable`, and `DataUnavailable` if it was changed.
        """


class NoTrail:
    """A server without an audit log: ordinary acts pass unrecorded, sensitive ones are refused."""

    async def require(self, event: AuditEvent) -> AuditEntry:
        raise SensitiveAuditRequired(f"{event.act.value}: this server has no audit log.")

    def note(self, event: AuditEvent) -> None:
        pass


canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Compact ASCII in the order of the keys. One encoder: to make one costs more than to use it."""
_ENTRY_FIELDS = tuple(each.name for each in fields(AuditEntry))
_TEXTS = frozenset(_ENTRY_FIELDS) - {"sequence", "time", "act", "outcome"}
_LONGEST = {"detail": LONGEST_DETAIL}


def entry_of(event: AuditEvent, sequence: int, time: datetime) -> AuditEntry:
    """The entry for an event, with texts that are clean and within their limits."""
    texts: dict[str, Any] = {
        each: _clean(text, each) for each in _TEXTS if (text := getattr(event, each))
    }
    return AuditEntry(
        sequence=sequence,
        time=time.astimezone(UTC),
        act=event.act,
        outcome=event.outcome,
        **texts,
    )


def encode(entry: AuditEntry) -> bytes:
    """The canonical bytes of an entry, without a newline. Empty texts are left out."""
    record: dict[str, object] = {
        each: text for each in _TEXTS if (text := getattr(entry, each)) != ""
    }
    record["act"] = entry.act.value
    record["outcome"] = entry.outcome.value
    record["sequence"] = entry.sequence
    record["time"] = entry.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return canonical(record).encode("ascii")


def decode(line: bytes) -> AuditEntry:
    """The entry in these bytes. Raises `BadEntry` unless they are canonical."""
    try:
        record = json.loads(line)
        texts = {each: record[each] for each in _TEXTS if each in record}
        if not all(isinstance(each, str) for each in texts.values()):
            raise BadEntry("a text is no text")
        entry = AuditEntry(
            sequence=int(record["sequence"]),
            time=datetime.strptime(record["time"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC),
            act=AuditAct(record["act"]),
            outcome=AuditOutcome(record["outcome"]),
            **texts,
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as problem:
        raise BadEntry(f"the entry can't be parsed: {type(problem).__name__}") from None
    if encode(entry) != line:
        raise BadEntry("the entry is not in its canonical form")
    return entry


def sentence(entry: AuditEntry) -> str:
    """The entry as a sentence, without its time."""
    text = SENTENCES[entry.act].format(who=entry.who, target=_target(entry))
    if entry.detail and entry.act is not AuditAct.KEY_CHANGE:
        text += f" ({entry.detail})"
    if entry.outcome is not AuditOutcome.DONE:
        text += f", {entry.outcome.value}"
    return text


def named_keys(entry: AuditEntry) -> tuple[bytes, ...]:
    """The public keys that a key change names. Raises `BadEntry`."""
    first, *keys = entry.detail.split()
    if entry.act is not AuditAct.KEY_CHANGE or first != TRUSTS or not keys:
        raise BadEntry("it names no key")
    try:
        return tuple(bytes.fromhex(each) for each in keys)
    except ValueError:
        raise BadEntry("it names no key") from None


def _target(entry: AuditEntry) -> str:
    job = entry.allocation.partition("@")[0]
    if job and entry.node:
        return f"{job} on {entry.node}"
    return job or entry.node or entry.target or entry.of_tenant or "something"


def _clean(text: str, name: str) -> str:
    """Printable text within its limit. JSON escapes everything else that is not ASCII."""
    if not text.isprintable():
        text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    longest = _LONGEST.get(name, LONGEST_NAME)
    return text if len(text) <= longest else text[: longest - 1] + _CUT
