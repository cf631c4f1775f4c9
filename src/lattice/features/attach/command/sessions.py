"""`lattice sessions`: open and past terminals in the caller's jobs."""

from __future__ import annotations

from lattice.base.command import Argument, Command, Option
from lattice.base.shell import Shell
from lattice.features.attach import operations
from lattice.features.attach.render import sessions_table


def sessions(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the word people read in the usage line
    all: bool,  # noqa: A002 - the option's own word
) -> int:
    """List the sessions."""
    reference = shell.reference(id) if id is not None else ""
    answer = shell.call(operations.list_sessions(reference=reference, only_open=not all))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    if not answer.sessions:
        shell.note("No session is open." if not all else "There was no session yet.")
        return 0
    shell.write(sessions_table(answer.sessions, shell.style, shell.clock.now()))
    if answer.more:
        shell.note("Older ones are left out.")
    return 0


SESSIONS = Command(
    "sessions",
    summary="Your attached terminals, open and past",
    text="Lists the sessions that `lattice attach` opened in your jobs: where, since when, what "
    "ran, and how it ended; with an ID those in that allocation. Without --all only those that are "
    "open.",
    run=sessions,
    params=(
        Argument("id", required=False, complete="allocations"),
        Option("-a", "--all", help="Those that are over too."),
    ),
    examples=(
        ("lattice sessions", "what is open now"),
        ("lattice sessions --all -o json", "all that is kept, for a script"),
    ),
    permission="any role, for your own",
)
