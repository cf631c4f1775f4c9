"""Answers people: query, verify and export, cut to what the caller may see.

A review, which is a read of others' entries, is recorded in the log itself.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from datetime import datetime

from lattice.access.actor import Actor, Role
from lattice.access.limits import CallerLimits, Questions
from lattice.access.policy import governed_tenant
from lattice.base.caller_address import caller_address
from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, PermissionRefused, RateLimited
from lattice.domain.accounts import AccountTree
from lattice.domain.audit import AuditAct, AuditEntry, AuditEvent, AuditTrail, BadEntry
from lattice.domain.audit_bundle import first_line, last_line
from lattice.domain.audit_chain import ChainPoint, Sign, entry_in, hidden_line
from lattice.domain.objects import NoObject
from lattice.domain.scheduler import Scheduler
from lattice.features.audit.model import (
    AuditExportPart,
    AuditPage,
    AuditQuery,
    AuditVerdict,
    Visibility,
    row_of,
)
from lattice.features.audit.service.archive import BadSegment
from lattice.features.audit.service.head import AuditHead
from lattice.features.audit.service.reader import (
    AuditPiece,
    AuditReader,
    Verification,
    pieces_backwards,
)
from lattice.features.audit.service.recordings import RecordingCheck

_MOST_PIECES = 10
"""Segments that one query searches; its cursor continues behind them."""
_NEWEST = 10**18
_REVIEWERS = frozenset({Role.SYSTEM_ADMIN, Role.TENANT_ADMIN, Role.COMPLIANCE_REVIEWER})


class AuditService:
    """For everyone about themselves, and for those who review."""

    def __init__(
        self,
        reader: AuditReader,
        trail: AuditTrail,
        scheduler: Scheduler,
        limits: CallerLimits,
        clock: Clock,
        sign: Sign,
        own_keys: frozenset[str],
        anchors: Callable[[str], dict[int, bytes]],
    ) -> None:
        """`anchors` reads the anchors of a cluster that this server has written outside."""
        self._reader = reader
        self._trail = trail
        self._scheduler = scheduler
        self._limits = limits
        self._clock = clock
        self._sign = sign
        self._own_keys = own_keys
        self._anchors = anchors
        self._verifying = False

    async def query(self, actor: Actor, query: AuditQuery) -> AuditPage:
        """Return entries that the caller may see, newest first."""
        visible = self._visibility(actor)
        await self._limits.ask(actor.sub, Questions.QUERY_AUDIT)
        # Each page: anybody can make up a cursor.
        before = f" before entry {int(query.cursor)}" if query.cursor else ""
        self._record_review(actor, _conditions(query) + before)
        head = await self._reader.head()
        if head is None:
            return AuditPage(rows=(), cursor="", searched_to=None)
        return await self._page(query, visible, head)

    async def verify(self, actor: Actor, since: datetime | None = None) -> AuditVerdict:
        """Verify the whole log, and the recordings whose entries the caller may see.

        One run at a time on a server. `since` leaves out recordings that were closed before.
        """
        visible = self._reviewed(actor)
        await self._limits.ask(actor.sub, Questions.REVIEW_AUDIT)
        if self._verifying:
            raise RateLimited(
                "This server is verifying the audit log already.",
                hint="Try again in a minute.",
                retry_after_s=60,
            )
        self._record_review(actor, f"verify since={_moment(since)}" if since else "verify")
        self._verifying = True
        try:
            head = await self._reader.head()
            anchors = self._anchors(head.cluster if head else "")
            recordings = RecordingCheck(self._reader.recordings, self._clock, visible.shows, since)
            return await Verification(self._reader, self._own_keys, anchors, recordings).run()
        finally:
            self._verifying = False

    async def export(self, actor: Actor, cursor: str) -> AuditExportPart:
        """Return the next part of a bundle, and a cursor unless it is the last one."""
        visible = self._reviewed(actor)
        if not cursor:
            await self._limits.ask(actor.sub, Questions.REVIEW_AUDIT)
        head = await self._reader.head()
        if head is None:
            raise DataUnavailable("The audit log is empty.", hint="Nothing was recorded yet.")
        if cursor:
            after, made = _read_cursor(cursor)
        else:
            after, made = 0, self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        self._record_review(actor, f"export after entry {after}" if after else "export")
        first = first_line(head.cluster, made, actor.user or actor.sub)
        text = await self._part(head, visible, after)
        end = _end_of(text) or head.newest
        next_cursor = ""
        if end.sequence < head.newest.sequence:
            next_cursor = f"{end.sequence}:{made}"
        else:
            text += last_line(first, end, self._sign)
        return AuditExportPart(text=(text if cursor else first + text).decode(), cursor=next_cursor)

    def _visibility(self, actor: Actor) -> Visibility:
        if actor.role is Role.SYSTEM_ADMIN:
            return Visibility(everything=True)
        accounts = self._scheduler.live().cluster.accounts
        return Visibility(tenant=_reviewed_tenant(actor, accounts), user=actor.user, sub=actor.sub)

    def _reviewed(self, actor: Actor) -> Visibility:
        """The same for one who reviews. Raises `PermissionRefused` if no tenant is named."""
        visible = self._visibility(actor)
        if not (visible.everything or visible.tenant):
            raise PermissionRefused(
                "Your token names no tenant that you may review.",
                hint="`lattice whoami` shows the claim that it is read from.",
            )
        return visible

    def _record_review(self, actor: Actor, detail: str) -> None:
        if actor.role not in _REVIEWERS:
            return
        self._trail.note(
            AuditEvent(
                event=uuid.uuid4().hex,
                act=AuditAct.AUDIT_READ,
                sub=actor.sub,
                user=actor.user,
                role=actor.role.value,
                tenant=actor.tenant,
                address=caller_address(),
                detail=detail,
            )
        )

    async def _page(self, query: AuditQuery, visible: Visibility, head: AuditHead) -> AuditPage:
        before = int(query.cursor) if query.cursor else _NEWEST
        rows: list[AuditEntry] = []
        searched: AuditEntry | None = None
        pieces = 0
        async for piece in pieces_backwards(self._reader, head, before):
            if pieces >= _MOST_PIECES:
                return _page_of(rows, searched, more=True)
            pieces += 1
            for entry in reversed(await self._reader.entries(piece)):
                if entry.sequence >= before:
                    continue
                searched = entry
                if query.since and entry.time < query.since:
                    return _page_of(rows, searched, more=False)
                if visible.shows(entry) and _fits(query, entry):
                    rows.append(entry)
                    if len(rows) >= query.limit:
                        return _page_of(rows, searched, more=entry.sequence > 1)
        return _page_of(rows, searched, more=False)

    async def _part(self, head: AuditHead, visible: Visibility, after: int) -> bytes:
        piece = await self._piece_after(head, after)
        if piece.name is None:
            text = await self._reader.retained(head)
        else:
            try:
                text = (await self._reader.segment(piece.name)).text
            except (NoObject, BadSegment) as problem:
                raise DataUnavailable(
                    f"A segment of the archive can't be exported: {piece.name.key}: {problem}.",
                    hint="`lattice audit verify` names the first bad entry.",
                ) from None
        return text if visible.everything else await asyncio.to_thread(_cut, text, visible)

    async def _piece_after(self, head: AuditHead, after: int) -> AuditPiece:
        if after >= head.archived.sequence:
            return AuditPiece(head)
        for name in await self._reader.segments(head):
            if name.first > after:
                return AuditPiece(head, name)
        return AuditPiece(head)


def _reviewed_tenant(actor: Actor, accounts: AccountTree) -> str:
    if actor.role is Role.TENANT_ADMIN:
        return governed_tenant(actor, accounts)
    if actor.role is Role.COMPLIANCE_REVIEWER and actor.tenant:
        return actor.tenant if accounts.tenant_of(actor.tenant) == actor.tenant else ""
    return ""


def _fits(query: AuditQuery, entry: AuditEntry) -> bool:
    job = entry.allocation.partition("@")[0]
    return not (
        (query.user and query.user not in {entry.user, entry.sub})
        or (query.allocation and query.allocation not in {entry.allocation, job})
        or (query.owner and query.owner != entry.owner)
        or (query.node and query.node not in entry.node.split(","))
        or (query.tenant and query.tenant not in {entry.tenant, entry.of_tenant})
        or (query.act and query.act is not entry.act)
        or (query.outcome and query.outcome is not entry.outcome)
        or (query.until and entry.time >= query.until)
    )


def _page_of(rows: list[AuditEntry], searched: AuditEntry | None, *, more: bool) -> AuditPage:
    return AuditPage(
        rows=tuple(map(row_of, rows)),
        cursor=str(searched.sequence) if more and searched else "",
        searched_to=searched.time if searched else None,
    )


def _conditions(query: AuditQuery) -> str:
    named = {
        "user": query.user,
        "allocation": query.allocation,
        "owner": query.owner,
        "node": query.node,
        "tenant": query.tenant,
        "act": query.act.value if query.act else "",
        "since": _moment(query.since),
        "until": _moment(query.until),
    }
    return " ".join(f"{name}={value}" for name, value in named.items() if value) or "all"


def _moment(time: datetime | None) -> str:
    return time.isoformat() if time else ""


def _cut(text: bytes, visible: Visibility) -> bytes:
    """Hide what the caller may not see. Changes of keys stay: a verifier needs them."""
    lines: list[bytes] = []
    for line in text.splitlines(keepends=True):
        try:
            entry = entry_in(line)
        except BadEntry:
            entry = None
        hidden = entry is not None and not (
            entry.act is AuditAct.KEY_CHANGE or visible.shows(entry)
        )
        lines.append(hidden_line(line) if hidden else line)
    return b"".join(lines)


def _end_of(text: bytes) -> ChainPoint | None:
    """The point of the last seal in a text."""
    last = text.splitlines()[-1] if text else b""
    if not last.startswith(b"="):
        return None
    try:
        record = json.loads(last[1:])
        return ChainPoint(int(record["last"]), bytes.fromhex(record["head"]))
    except (ValueError, KeyError, TypeError):
        return None


def _read_cursor(cursor: str) -> tuple[int, str]:
    after, _, made = cursor.partition(":")
    return int(after), made
