"""`lattice report`: what a job requested, what it used, and what to change."""

from __future__ import annotations

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.features.report import operations


def read_attempt(text: str) -> int:
    """Parse the number of an attempt, 1 to 1000000. Raises `UsageError`."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 1_000_000:
        raise UsageError(f"{text!r} is no number of an attempt", hint="Write 1, 2, …")
    return int(text)


def report(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the word people read in the usage line
    attempt: int | None,
) -> int:
    """Show one attempt on one screen."""
    answer = shell.call(operations.get_report(shell.reference(id), attempt=attempt or 0))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    from lattice.features.report.render import report_text  # noqa: PLC0415

    shell.write(report_text(answer, shell.style, shell.clock.now()))
    return 0


REPORT = Command(
    "report",
    summary="What a job asked for, what it used, and what to change",
    text="Shows on one screen what an allocation asked for and what it used over its whole life, "
    "what it left unused, and what to ask for next time, with the numbers behind it and the option "
    "of sbatch. What nobody measured is — with the reason.\n\n"
    "It is kept when the job is over: a job of last year is answered from that. Of a job that "
    "still runs it is what it used so far, without advice.",
    run=report,
    params=(
        Argument("id", required=False, complete="allocations"),
        Option(
            "--attempt", metavar="N", read=read_attempt, help="This one; the newest that started."
        ),
    ),
    examples=(
        ("lattice report 12345", "after it has ended"),
        ("lattice report @last", "the one submitted last"),
        ("lattice report 12345 -o json", "every figure with its source, for a script"),
    ),
    permission="any role, for your own and what is shared with you",
)
