"""`lattice history`: finished and running allocations of any time, as sacct lists them."""

from __future__ import annotations

from lattice.base.command import Command, Option
from lattice.base.errors import UsageError
from lattice.base.moment import parse_moment
from lattice.base.shell import Shell
from lattice.domain.allocation import Allocation
from lattice.features.allocations import operations
from lattice.features.allocations.command.options import ALL, STATE, USER, warn_of_sources
from lattice.features.allocations.model import LARGEST_LIST, AllocationList
from lattice.features.allocations.render.list_table import history_table
from lattice.features.allocations.render.states import known_at

_HISTORY_LIMIT = 100


def read_limit(text: str) -> int:
    """Parse a number of allocations, 1 to 100000. Raises `UsageError`."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 100_000:
        raise UsageError(f"{text!r} is no number of allocations", hint="Write 1 to 100000.")
    return int(text)


def history(
    shell: Shell,
    *,
    since: str | None,
    until: str | None,
    state: tuple[tuple[str, ...], ...],
    user: str | None,
    all: bool,  # noqa: A002 - the option's name
    limit: int | None,
) -> int:
    """Show the allocations of a time range, fetched page by page."""
    now, zone = shell.clock.now(), shell.style.zone
    states = tuple(dict.fromkeys(word for group in state for word in group))
    begin = parse_moment(since, now, zone) if since else None
    end = parse_moment(until, now, zone) if until else None
    if begin is not None and end is not None and begin >= end:
        raise UsageError("--since is not before --until", hint="Swap them, or leave one out.")
    with_user = all or user is not None
    wanted = limit or _HISTORY_LIMIT
    found: list[Allocation] = []
    cursor = ""
    while True:
        answer = shell.call(
            operations.list_history(
                states=states,
                user=user or "",
                everyone=all,
                since=begin,
                until=end,
                limit=min(wanted - len(found), LARGEST_LIST),
                cursor=cursor,
            )
        )
        found.extend(answer.allocations)
        cursor = answer.next or ""
        if not cursor or len(found) >= wanted:
            break
    whole = AllocationList(allocations=tuple(found), sources=answer.sources, next=answer.next)
    if shell.output in {"json", "yaml"}:
        shell.document(whole)
    elif found:
        at = known_at(answer.sources, now)
        shell.write(history_table(found, shell.style, at, with_user=with_user))
    warn_of_sources(shell, whole)
    if not found:
        shell.note("No allocation in that time. Reach further back with --since 30d.")
    elif cursor:
        shell.note(f"These are the newest {len(found)}; there are more: raise --limit.")
    return 0


HISTORY = Command(
    "history",
    summary="Finished and running allocations of any time",
    text="Answers what sacct answers: when allocations began and ended, and how, each attempt on "
    "its own line. Newest first, and of the last 7 days unless --since says otherwise.\n\n"
    "TIME is 14:02, 2026-11-15T14:02, 5m, 2h or 3d (ago), today or yesterday.",
    run=history,
    params=(
        Option("-S", "--since", metavar="TIME", help="From this time on."),
        Option("-E", "--until", metavar="TIME", help="Up to this time."),
        STATE,
        USER,
        ALL,
        Option("-n", "--limit", metavar="N", read=read_limit, help="At most so many; 100."),
    ),
    examples=(
        ("lattice history --since today", "what ran today"),
        ("lattice history -s failed --since yesterday", "what went wrong"),
        ("lattice history -S 2026-11-01 -E 2026-11-08 -o json", "a stretch, for a script"),
    ),
    permission="any role, for your own; a coordinator's and an admin's reach with --all or --user",
    serverless=True,
)
