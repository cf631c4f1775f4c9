"""`lattice admin lock`, `lattice admin unlock` and `lattice admin locks`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.moment import moment, parse_duration
from lattice.base.shell import Shell
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.lock import LockKind
from lattice.features.locks import operations
from lattice.features.locks.model import LockList


# `for` is an option's name but can't be a parameter in Python.
def lock(shell: Shell, *, kind: str, target: str | None, reason: str | None, **options: Any) -> int:
    """Create a lock and print its end."""
    if not reason:
        raise UsageError(
            "A lock needs a reason.", hint="--reason TEXT; who is locked out reads it."
        )
    duration_s: int | None = options["for"]
    answer = shell.call(
        operations.create_lock(kind, target or "", reason=reason, duration_s=duration_s or 0)
    )
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    made = answer.locks[0]
    until = "until it is unlocked"
    if made.until:
        until = f"until {moment(made.until, shell.style, shell.clock.now())}"
    shell.write(f"Locked {inert(made.name)} {until}\n")
    shell.note(f"`lattice admin unlock {made.name}` ends it. Jobs run on.")
    return 0


def unlock(shell: Shell, *, kind: str, target: str | None) -> int:
    answer = shell.call(operations.delete_lock(kind, target or ""))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(f"Unlocked {inert(answer.locks[0].name)}\n")
    return 0


def locks(shell: Shell) -> int:
    answer = shell.call(operations.list_locks())
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    shell.write(_lock_table(answer, shell.style, shell.clock.now()))
    if not answer.locks:
        shell.note("Nothing is locked.")
    return 0


def _lock_table(answer: LockList, style: Style, now: datetime) -> str:
    if not answer.locks:
        return ""
    columns = [Column("LOCKED"), Column("BY"), Column("SINCE"), Column("UNTIL"), Column("REASON")]
    rows: list[list[Cell]] = [
        [
            inert(each.name),
            inert(each.by),
            moment(each.since, style, now),
            moment(each.until, style, now) if each.until else "unlocked",
            inert(each.reason),
        ]
        for each in answer.locks
    ]
    return table(columns, rows, style)


_KIND = Argument("kind", choices=tuple(LockKind))
_TARGET = Argument("target", required=False)
_PERMISSION = "Operator or SystemAdmin; TenantAdmin for users of the tenant"

LOCK = Command(
    "admin lock",
    summary="Shut a user, a node, a terminal or everything out",
    text="It holds on every server within 5 s. What is open ends and says why: terminals, "
    "followed logs, watches. New calls are refused with the reason. Jobs are not touched: they "
    "run on, and their output is stored.\n\n"
    "`user` takes a Unix user or a subject, `node` a node, `session` the id of a terminal, `all` "
    "nothing: everybody is shut out, but operators and system admins can still unlock.",
    run=lock,
    params=(
        _KIND,
        _TARGET,
        Option("--reason", metavar="TEXT", help="Why; whoever is locked out reads it."),
        Option(
            "--for",
            metavar="TIME",
            read=parse_duration,
            help="How long: 90m, 1d. Until it is unlocked if nothing is said.",
        ),
    ),
    examples=(
        ('lattice admin lock user mallory --reason "stolen laptop"', "until it is unlocked"),
        ("lattice admin lock node n3 --reason forensics --for 2h", "no terminal on n3"),
        ("lattice admin lock all --reason maintenance --for 30m", "everybody"),
    ),
    permission=_PERMISSION,
)

UNLOCK = Command(
    "admin unlock",
    summary="End a lock",
    text="From now on; named as it was locked.",
    run=unlock,
    params=(_KIND, _TARGET),
    examples=(("lattice admin unlock user mallory", "she may sign in and act again"),),
    permission=_PERMISSION,
)

LOCKS = Command(
    "admin locks",
    summary="What is locked, by whom and why",
    text="Locks in force. A tenant admin sees those of users of the tenant.",
    run=locks,
    params=(),
    examples=(("lattice admin locks", "a row each"),),
    permission=_PERMISSION,
)
