"""`lattice timeline`: what happened to a job, and what was measured, on one axis of time."""

from __future__ import annotations

import os
from pathlib import Path

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.features.timeline import operations


def timeline(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the word people read in the usage line
    html: str | None,
) -> int:
    """Show the timeline, or write it as a page."""
    answer = shell.call(operations.get_timeline(shell.reference(id)))
    if html is not None:
        from lattice.features.timeline.render.page import page  # noqa: PLC0415

        _write(Path(html), page(answer))
        shell.note(f"Written to {html}; it opens without a network.")
        return 0
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    from lattice.features.timeline.render.plain import timeline_text  # noqa: PLC0415

    shell.write(timeline_text(answer, shell.style, shell.clock.now()))
    return 0


def _write(path: Path, text: str) -> None:
    """Replace the file in one step, readable for its owner alone. Raises `UsageError`."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise UsageError(
            f"{path} can't be written: {error.strerror}", hint="Name a file in your own folder."
        ) from None


TIMELINE = Command(
    "timeline",
    summary="What happened to a job and what was measured, on one axis",
    text="Shows a job from its submit to its end or to now on one axis of time: waiting, starting "
    "and running of each attempt, its training runs with their loss, what was measured, the alerts "
    "that stand, your terminals, and who else has read it.\n\n"
    "--html writes one file that opens in any browser without a network. It has the same content "
    "with every time and text. What can't be shown is named with the reason.",
    run=timeline,
    params=(
        Argument("id", required=False, complete="allocations"),
        Option("--html", metavar="FILE", help="Write a page into this file instead."),
    ),
    examples=(
        ("lattice timeline 12345", "in the terminal"),
        ("lattice timeline @last --html run.html", "one file, to keep or to send"),
        ("lattice timeline 12345 -o json", "every point, for a script"),
    ),
    permission="any role, for your own and what is shared with you",
)
