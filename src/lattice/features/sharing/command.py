"""`lattice share` and `lattice unshare`."""

from __future__ import annotations

from typing import Any

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.moment import parse_duration
from lattice.base.shell import Shell
from lattice.features.sharing import operations
from lattice.features.sharing.render import shared_line, sharing_text, unshared_line


# `with` and `for` are options' names but can't be parameters in Python.
def share(shell: Shell, *, id: str | None, **options: Any) -> int:  # noqa: A002
    """Share an allocation, or list its shares and readers."""
    users: tuple[str, ...] = options["with"]
    duration_s: int | None = options["for"]
    if duration_s is not None and not users:
        raise UsageError("--for goes with --with", hint="Say with whom: --with USER.")
    name = shell.reference(id)
    if not users:
        return _list(shell, name)
    answers = []
    for user in dict.fromkeys(users):
        answer = shell.call(operations.share_allocation(name, user, duration_s=duration_s or 0))
        made = max(
            (each for each in answer.shares if each.user == user), key=lambda each: each.since
        )
        answers.append(answer)
        if shell.output not in {"json", "yaml"}:
            shell.write(shared_line(made, shell.style, shell.clock.now()))
    if shell.output in {"json", "yaml"}:
        shell.document(answers[-1])
    return 0


def unshare(shell: Shell, *, id: str, **options: Any) -> int:  # noqa: A002
    users: tuple[str, ...] = options["with"]
    if not users:
        raise UsageError("With whom no longer?", hint=f"lattice unshare {id} --with USER")
    name = shell.reference(id)
    for user in dict.fromkeys(users):
        answer = shell.call(operations.unshare_allocation(name, user))
        if shell.output not in {"json", "yaml"}:
            shell.write(unshared_line(answer.allocation.partition("@")[0], user))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    return 0


def _list(shell: Shell, name: str) -> int:
    answer = shell.call(operations.list_shares(name))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    shell.write(sharing_text(answer, shell.style, shell.clock.now()))
    if not answer.shares:
        shell.note(f"Shared with nobody. `lattice share {name} --with USER` lets a user read it.")
    if not answer.readers:
        shell.note("Nobody but you has read it in the last 30 days.")
    return 0


_WITH = Option("--with", metavar="USER", repeat=True, help="The user; may be given several times.")

SHARE = Command(
    "share",
    summary="Let others read a job's output, and see who did",
    text="With --with it lets a user see one of your allocations for a while: its card, what it "
    "wrote and what was measured of it. Nothing else: no terminal, no cancelling, none of your "
    "other jobs. Shared again, the time counts from then on. The id of an array or of a het job "
    "shares all its parts.\n\n"
    "Without --with it lists with whom the allocation is shared, and who but you has read its "
    "output or its measurements in the last 30 days and by which right.",
    run=share,
    params=(
        Argument("id", required=False, complete="allocations"),
        _WITH,
        Option(
            "--for",
            metavar="TIME",
            read=parse_duration,
            help="How long: 90m, 1d, 2w. A week if nothing is said, a month at most, unless the "
            "site has set it otherwise.",
        ),
    ),
    examples=(
        ("lattice share 12345 --with bob", "for a week"),
        ("lattice share 12345 --with bob --with carol --for 1d", "two people, a day"),
        ("lattice share 12345", "with whom, and who has read it"),
    ),
    permission="any role but ReadOnly, for your own; the list any role",
)

UNSHARE = Command(
    "unshare",
    summary="Let a user read a job's output no longer",
    text="Ends what `lattice share` began, at once: a stream that the user has open ends within "
    "seconds, and the allocation is not there for her any more. Where the whole array was shared, "
    "that ends with it.",
    run=unshare,
    params=(Argument("id", complete="allocations"), _WITH),
    examples=(("lattice unshare 12345 --with bob", "from now on"),),
    permission="any role but ReadOnly, for your own",
)
