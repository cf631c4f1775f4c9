"""Requests and answers of the feature, and who may see an entry. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypeAlias

from lattice.base.operation import FieldRule
from lattice.domain.audit import AuditAct, AuditEntry, AuditOutcome, sentence
from lattice.domain.recording_proof import DamagedRecording

MOST_ROWS = 1000
USUAL_ROWS = 100

Condition: TypeAlias = Annotated[str, FieldRule(longest=200)]
"""A text that an entry must have; empty is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerifyQuery:
    """What is verified: always the whole log."""

    since: datetime | None = None
    """Of recordings only those that were closed since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Which entries; an empty field sets no condition."""

    user: Condition = ""
    """The actor: a Unix user or a subject."""
    allocation: Condition = ""
    owner: Condition = ""
    node: Condition = ""
    tenant: Condition = ""
    act: AuditAct | None = None
    outcome: AuditOutcome | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: Annotated[int, FieldRule(least=1, most=MOST_ROWS)] = USUAL_ROWS
    cursor: Annotated[str, FieldRule(pattern=r"[0-9]{0,18}")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One entry, with a sentence for people."""

    sequence: int
    time: datetime
    event: str
    act: AuditAct
    outcome: AuditOutcome
    sub: str
    user: str
    role: str
    tenant: str
    allocation: str
    owner: str
    node: str
    of_tenant: str
    target: str
    address: str
    detail: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Rows, newest first. An empty cursor: there are no older ones."""

    rows: tuple[AuditRow, ...]
    cursor: str
    searched_to: datetime | None
    """The time of the oldest entry that was searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict:
    """The result of a verification of the whole log, and of the recordings that it names."""

    ok: bool
    """False if the log or a recording is damaged."""
    cluster: str
    entries: int
    """Entries that were verified."""
    segments: int
    anchors: int
    """Anchors outside that were compared."""
    head: str
    """The link of the newest verified entry."""
    keys: tuple[str, ...]
    """Names of the keys that the log trusts."""
    first_bad: int | None = None
    problem: str = ""
    recordings: int = 0
    """Recordings of terminals that are whole."""
    recordings_removed: int = 0
    """Those that were removed after their retention."""
    recordings_damaged: int = 0
    recordings_unchecked: int = 0
    """Those of which nobody knows whether they are whole."""
    unchecked_because: str = ""
    damaged: tuple[DamagedRecording, ...] = ()
    """A hundred of the damaged ones at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditExportPart:
    """Lines of a signed bundle. An empty cursor: it is the last part."""

    text: str
    cursor: str


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which entries a caller may see: all, those of a tenant, and those that concern them."""

    everything: bool = False
    tenant: str = ""
    user: str = ""
    sub: str = ""

    def shows(self, entry: AuditEntry) -> bool:
        if self.everything:
            return True
        if self.tenant and self.tenant in {entry.of_tenant, entry.tenant}:
            return True
        if self.user and self.user in {entry.owner, entry.user}:
            return True
        return bool(self.sub) and self.sub == entry.sub


def row_of(entry: AuditEntry) -> AuditRow:
    return AuditRow(
        sequence=entry.sequence,
        time=entry.time,
        event=entry.event,
        act=entry.act,
        outcome=entry.outcome,
        sub=entry.sub,
        user=entry.user,
        role=entry.role,
        tenant=entry.tenant,
        allocation=entry.allocation,
        owner=entry.owner,
        node=entry.node,
        of_tenant=entry.of_tenant,
        target=entry.target,
        address=entry.address,
        detail=entry.detail,
        sentence=sentence(entry),
    )
