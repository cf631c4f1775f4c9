"""`lattice cancel`: cancel allocations as the caller."""

from __future__ import annotations

from lattice.base.command import Argument, Command
from lattice.base.errors import LatticeError, status_of
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.features.submit import operations
from lattice.features.submit.model import CancelAnswer
from lattice.features.submit.render import cancelled_line


def cancel(
    shell: Shell,
    *,
    id: tuple[str, ...],  # noqa: A002 - the word people read in the usage line
) -> int:
    """Cancel each one; a failure does not stop the others."""
    # All references are resolved first: one that names nothing cancels nothing.
    calls = [operations.cancel_allocation(shell.reference(name)) for name in id]
    if len(calls) == 1:
        return _show(shell, [shell.call(calls[0])], 0)
    answers: list[CancelAnswer] = []
    code = 0
    for call in calls:
        try:
            answers.append(shell.call(call))
        except LatticeError as error:
            shell.warn(inert(error.message))
            code = code or status_of(error).exit
    return _show(shell, answers, code)


def _show(shell: Shell, answers: list[CancelAnswer], code: int) -> int:
    if shell.output in {"json", "yaml"}:
        shell.document(answers)
    else:
        shell.write("".join(map(cancelled_line, answers)))
    return code


CANCEL = Command(
    "cancel",
    summary="Cancel allocations",
    text="Runs scancel as you: your own, and others' where Slurm lets you as a coordinator or "
    "administrator. A bare id of an array cancels all of it, 12345_7 one task; @last is your "
    "newest, and a name means the only one so called.\n\n"
    "An id that is not there, or not yours, is exit code 102.",
    run=cancel,
    params=(Argument("id", repeat=True, complete="allocations"),),
    examples=(
        ("lattice cancel 12345", "one"),
        ("lattice cancel 12345_7 12346", "a task, and another"),
        ("lattice cancel @last", "the newest"),
    ),
    permission="any role but ReadOnly, for your own",
)
