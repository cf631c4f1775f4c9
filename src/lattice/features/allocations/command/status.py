"""`lattice status`: the list of allocations, or one in full."""

from __future__ import annotations

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.features.allocations import operations
from lattice.features.allocations.command.options import (
    ALL,
    STATE,
    USER,
    own_job,
    resolve,
    warn_of_sources,
)
from lattice.features.allocations.model import AllocationCard, AllocationList
from lattice.features.allocations.render.list_table import allocation_table
from lattice.features.allocations.render.states import known_at, summary


def status(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the word people read in the usage line
    state: tuple[tuple[str, ...], ...],
    user: str | None,
    all: bool,  # noqa: A002 - the option's name
    watch: bool,
) -> int:
    """Show the list, or one allocation in full."""
    chosen = bool(state or user or all)
    if id is not None and chosen:
        raise UsageError(
            "--state, --user and --all choose from the list and go with no id",
            hint=f"Leave them out: lattice status {id}",
        )
    name = None if chosen else id or own_job(shell)
    if name is not None:
        return _one(shell, resolve(shell, name), watch=watch)
    states = tuple(dict.fromkeys(word for group in state for word in group))
    call = operations.list_allocations(states=states, user=user or "", everyone=all)
    with_user = all or user is not None
    if watch:
        from lattice.features.allocations.command import watch as watching  # noqa: PLC0415

        return watching.watch(
            shell,
            lambda: shell.call(call),
            lambda answer: list_text(shell, answer, with_user=with_user) or nothing(chosen=True),
            lambda answer: answer.allocations,
        )
    answer = shell.call(call)
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(list_text(shell, answer, with_user=with_user))
    warn_of_sources(shell, answer)
    if not answer.allocations:
        shell.note(nothing(chosen=chosen).rstrip("\n"))
    return 0


def list_text(shell: Shell, answer: AllocationList, *, with_user: bool) -> str:
    """Return the table, on a terminal with a summary line below."""
    if not answer.allocations:
        return ""
    style, now = shell.style, known_at(answer.sources, shell.clock.now())
    text = allocation_table(answer.allocations, style, now, with_user=with_user)
    if shell.live:
        more = " · there are more; narrow it with --state" if answer.next else ""
        text += style.paint(summary(answer.allocations) + more, "dim") + "\n"
    return text


def nothing(*, chosen: bool) -> str:
    """Return the text for an empty list, with a hint."""
    if chosen:
        return "No allocation matches. `lattice history` shows older ones.\n"
    return (
        "You have no allocation that is waiting, running or of the last 24 hours.\n"
        "Submit one with `lattice submit`; `lattice history` shows older ones.\n"
    )


def _one(shell: Shell, reference: str, *, watch: bool) -> int:
    call = operations.get_allocation(reference, last_output=True, runs=True)
    if watch:
        from lattice.features.allocations.command import watch as watching  # noqa: PLC0415

        return watching.watch(
            shell,
            lambda: shell.call(call),
            lambda answer: card_text(shell, answer),
            lambda answer: (answer.allocation,),
            to_the_end=True,
        )
    answer = _with_own_runs(shell, shell.call(call))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(card_text(shell, answer))
    warn_of_sources(shell, answer)
    return 0


def _with_own_runs(shell: Shell, answer: AllocationCard) -> AllocationCard:
    """Add the runs of the SQLite file that MLflow's own variable names."""
    if not shell.environment.get("MLFLOW_TRACKING_URI", "").startswith("sqlite:"):
        return answer
    from lattice.features.allocations.command.own_runs import with_own_runs  # noqa: PLC0415

    return with_own_runs(shell, answer)


def card_text(shell: Shell, answer: AllocationCard) -> str:
    """Return the card, on a terminal with the commands that can follow."""
    from lattice.features.allocations.render.card import card, next_commands  # noqa: PLC0415

    text = card(answer, shell.style, known_at(answer.sources, shell.clock.now()))
    if shell.live:
        text += shell.style.paint(next_commands(answer.allocation), "dim") + "\n"
    return text


STATUS = Command(
    "status",
    summary="Your allocations, or one in full",
    text="Lists your allocations that are waiting, running or of the last 24 hours. With an ID it "
    "shows one in full: why it waits, where it runs, its attempts and how it ended.\n\n"
    "ID is a job id (12345), an array task (12345_7), a component (12345+1), a name, or @last; "
    "12345@TIME names an older use of the same id. Inside a job the default is that job, and "
    "--state all gives the list.",
    run=status,
    params=(
        Argument("id", required=False, complete="allocations"),
        STATE,
        USER,
        ALL,
        Option("-w", "--watch", help="Go on showing what changes; in a pipe a line a change."),
    ),
    examples=(
        ("lattice status", "everything of yours that matters now"),
        ("lattice status 12345", "one of them in full"),
        ("lattice status -s failed", "what failed in the last day"),
        ("lattice status --watch -o json", "a JSON line for every change"),
    ),
    permission="any role, for your own; a coordinator's and an admin's reach with --all or --user",
    serverless=True,
)
