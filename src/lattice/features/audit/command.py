"""`lattice audit query|verify|export`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from lattice.base.choices import one_of
from lattice.base.command import Argument, Command, Option
from lattice.base.errors import STATUS, Unavailable, UsageError
from lattice.base.moment import parse_moment
from lattice.base.shell import Shell
from lattice.domain.audit import AuditAct, AuditOutcome
from lattice.domain.audit_anchor import read_anchors
from lattice.domain.audit_bundle import NoBundle, cluster_of, verify_bundle
from lattice.domain.audit_chain import ChainBroken
from lattice.domain.recording_proof import RecordingLedger
from lattice.features.audit import operations, render
from lattice.features.audit.model import MOST_ROWS, USUAL_ROWS, AuditPage, AuditRow
from lattice.features.audit.recording_folder import FolderCheck

_ACTS = ("query", "verify", "export")
_FILTERS = ("user", "allocation", "owner", "node", "tenant", "act", "outcome", "since", "until")
_LONGEST_LINE = 64 * 1024


def read_limit(text: str) -> int:
    """Parse the number of entries. Raises `UsageError`."""
    if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MOST_ROWS:
        return int(text)
    raise UsageError(f"{text[:40]!r} is no number of entries.", hint=f"From 1 to {MOST_ROWS}.")


def audit(shell: Shell, *, do: str, file: str | None, **options: Any) -> int:
    """Query, verify or export the audit log."""
    _check(do, file, options)
    if do == "query":
        return _query(shell, options)
    if do == "export":
        return _export(shell, file or "")
    if file is None:
        return _verify(shell, _moment(shell, options["since"]))
    return _verify_file(shell, Path(file), options)


def _check(do: str, file: str | None, options: dict[str, Any]) -> None:
    filters = [each for each in (*_FILTERS, "limit") if options[each] is not None]
    if do == "verify" and file is None and filters == ["since"]:
        filters = []
    if do != "query" and filters:
        raise UsageError(f"--{filters[0]} goes with query.", hint="Leave it out.")
    if do == "query" and file is not None:
        raise UsageError("query takes no file.", hint="Filters are options, such as --user.")
    if do == "export" and file is None:
        raise UsageError("export needs a file.", hint="lattice audit export audit.bundle")
    offline = [each for each in ("anchors", "key", "recordings") if options[each] is not None]
    if offline and not (do == "verify" and file is not None):
        raise UsageError(
            f"--{offline[0]} goes with verify FILE.", hint="A server has its own anchors and keys."
        )


def _query(shell: Shell, options: dict[str, Any]) -> int:
    limit = options["limit"] or USUAL_ROWS
    rows: list[AuditRow] = []
    page = AuditPage(rows=(), cursor="", searched_to=None)
    while len(rows) < limit:
        page = shell.call(
            operations.query_audit(
                user=options["user"] or "",
                allocation=options["allocation"] or "",
                owner=options["owner"] or "",
                node=options["node"] or "",
                tenant=options["tenant"] or "",
                act=one_of(AuditAct, options["act"], "act") if options["act"] else None,
                outcome=one_of(AuditOutcome, options["outcome"], "outcome")
                if options["outcome"]
                else None,
                since=_moment(shell, options["since"]),
                until=_moment(shell, options["until"]),
                limit=limit - len(rows),
                cursor=page.cursor,
            )
        )
        rows += page.rows
        if not page.cursor:
            break
    _show(shell, rows, page)
    return 0


def _show(shell: Shell, rows: list[AuditRow], last: AuditPage) -> None:
    now = shell.clock.now()
    if shell.output in {"json", "yaml"}:
        shell.document(
            AuditPage(rows=tuple(rows), cursor=last.cursor, searched_to=last.searched_to)
        )
        return
    text = render.wide_table if shell.output == "wide" else render.sentences
    if rows:
        # The newest last, as a log is read.
        shell.page([text(rows[::-1], shell.style, now)])
    else:
        shell.note("Nothing is recorded that you may see and that fits.")
    if last.cursor:
        shell.note(f"There are older entries: --until or --limit (at most {MOST_ROWS}).")


def _verify(shell: Shell, since: datetime | None) -> int:
    shell.note("Verifying the whole log. A large one takes minutes, and so do recordings.")
    verdict = shell.call(operations.verify_audit(since))
    if shell.output in {"json", "yaml"}:
        shell.document(verdict)
    else:
        shell.write(render.verdict_text(verdict))
    return _code(ok=verdict.ok, unchecked=verdict.recordings_unchecked)


def _code(*, ok: bool, unchecked: int) -> int:
    """1 if something is damaged, 75 if something could not be checked."""
    if not ok:
        return 1
    return STATUS[Unavailable].exit if unchecked else 0


def _verify_file(shell: Shell, file: Path, options: dict[str, Any]) -> int:
    anchors, key = options["anchors"], options["key"] or ""
    folder = options["recordings"]
    ledger = RecordingLedger()
    if folder is not None and not Path(folder).is_dir():
        raise UsageError(f"{folder} is no folder.", hint="Name a copy of the sensitive bucket.")
    take = FolderCheck(Path(folder), ledger).take if folder is not None else None
    try:
        cluster = cluster_of(next(_lines(file), b""))
        known = {}
        if anchors is not None:
            with Path(anchors).open(encoding="utf-8", errors="replace") as text:
                known = read_anchors(text, cluster)
        verdict = verify_bundle(_lines(file), known, key, take)
    except NoBundle as problem:
        raise UsageError(
            f"{file} is no bundle of an audit log: {problem}.", hint="Use one of `audit export`."
        ) from None
    except OSError as problem:
        raise UsageError(f"{problem.filename} can't be read: {problem.strerror}.") from None
    except ChainBroken as broken:
        shell.write(render.bad_text(broken.sequence, broken.problem))
        return 1
    shell.write(
        render.with_recordings(
            render.bundle_text(verdict),
            ledger.whole,
            ledger.removed,
            ledger.unchecked,
            ledger.unchecked_because,
            ledger.damaged,
            ledger.named(),
        )
    )
    if not key:
        shell.note(
            "Anyone could have made a bundle with a key of their own: compare the key with "
            "`lattice audit verify` on a server, or name it with --key."
        )
    return _code(ok=not ledger.damaged, unchecked=ledger.unchecked)


def _export(shell: Shell, file: str) -> int:
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            cursor = ""
            while True:
                part = shell.call(operations.export_audit(cursor))
                out.write(part.text)
                cursor = part.cursor
                if not cursor:
                    break
    except FileExistsError:
        raise UsageError(f"{file} exists.", hint="Name a new file.") from None
    except OSError as problem:
        raise UsageError(f"{file} can't be written: {problem.strerror}.") from None
    shell.note(f"`lattice audit verify {file}` verifies it anywhere, without a server.")
    return 0


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while line := source.readline(_LONGEST_LINE):
            yield line


def _moment(shell: Shell, text: str | None) -> datetime | None:
    return parse_moment(text, shell.clock.now(), shell.style.zone) if text else None


def _text(name: str, metavar: str, text: str) -> Option:
    return Option(name, metavar=metavar, help=text)


AUDIT = Command(
    "audit",
    summary="Who did what: query, verify and export the audit log",
    text="`query` lists entries, the newest last: your own, those about your allocations, and for "
    "those who review all of their tenant or of the cluster. `verify` checks the whole log on the "
    "server, or a bundle in a file without any server, and names the first bad entry (exit code "
    "1). It checks the recordings of terminals too, and names those that are not whole with their "
    "first bad chunk (1); 75: some could not be checked. `export` writes a signed bundle; what you "
    "may not see is in it as a hash only.\n\n"
    "A review is recorded too.",
    run=audit,
    params=(
        Argument("do", choices=_ACTS),
        Argument("file", required=False),
        _text("--user", "USER", "Who acted: a Unix user or a subject."),
        _text("--allocation", "ID", "Which job; with @TIME exactly one use of its id."),
        _text("--owner", "USER", "Whose job."),
        _text("--node", "NODE", "Which node."),
        _text("--tenant", "NAME", "Of whose actor, or of what it concerns."),
        Option("--act", choices=tuple(AuditAct), help="What was done."),
        Option("--outcome", choices=tuple(AuditOutcome), help="How it ended."),
        _text("--since", "TIME", "From then on: 14:02, 2d; for verify: recordings since then."),
        _text("--until", "TIME", "Up to then."),
        Option("--limit", metavar="N", read=read_limit, help=f"Entries; {USUAL_ROWS} if not set."),
        _text("--anchors", "FILE", "Hashes written outside, for verify FILE: it finds a rollback."),
        _text("--recordings", "FOLDER", "A copy of the sensitive bucket, for verify FILE."),
        _text("--key", "NAME", "The key that must have signed the bundle, for verify FILE."),
    ),
    examples=(
        ("lattice audit query --allocation 12345", "who did what with it"),
        ("lattice audit query --act attach-start --since 1d", "terminals of the last day"),
        ("lattice audit verify", "the whole log, on the server"),
        ("lattice audit export audit.bundle", "a signed copy"),
        ("lattice audit verify audit.bundle --anchors /var/log/lattice.anchor", "offline"),
        ("lattice audit verify audit.bundle --recordings COPY", "with a copy of the recordings"),
    ),
    permission="any role for one's own; SystemAdmin, TenantAdmin, ComplianceReviewer to review",
)
