"""`lattice session`: a new allocation with a terminal in it; `lattice sessions`: all terminals."""

from __future__ import annotations

import os

from lattice.base.clock import pauses
from lattice.base.command import Argument, Command, Option
from lattice.base.errors import JobEnded, LatticeError, RateLimited, Unavailable
from lattice.base.moment import duration
from lattice.base.shell import Shell
from lattice.base.text import inert, shell_split
from lattice.domain.allocation import State
from lattice.features.attach import operations, terminal_call
from lattice.features.attach.operations import Target
from lattice.features.attach.render import sessions_table

# It only holds the allocation; the end of the terminal cancels it.
_WAITS = "#!/bin/sh\n# Written by lattice session.\nexec sleep infinity\n"
_SLEEP_S = (0.25, 0.25, 0.5, 0.5)
"""Short at first: a free cluster starts a job at once, and a person waits."""
_SILENCE_S = 900.0


def session(  # noqa: PLR0913 - one for each option people know
    shell: Shell,
    *,
    nodes: str | None,
    walltime: str | None,
    gpus: str | None,
    vcluster: str | None,
    project: str | None,
    name: str | None,
    chdir: str | None,
    sbatch: tuple[tuple[str, ...], ...],
    uenv: str | None,
    view: str | None,
    tools_uenv: str | None,
    keep: bool,
    argv: tuple[str, ...],
) -> int:
    """Submit the job, wait for its start, attach to it, and cancel it unless `keep`."""
    request = {
        "script": _WAITS,
        "file": "session",
        "nodes": nodes,
        "walltime": walltime,
        "gpus": gpus,
        "vcluster": vcluster,
        "project": project,
        "name": name or "session",
        "output": "/dev/null",
        "directory": chdir or _here(),
        "directory_required": chdir is not None,
        "options": [word for group in sbatch for word in group],
        "uenv": uenv,
        "view": view,
    }
    answer = shell.call(operations.submit_session(request, os.urandom(16).hex()))
    shell.note(f"Submitted allocation {inert(answer.id)}")
    for note in answer.notes:
        for line in note.splitlines():
            shell.note(inert(line))
    over = False
    try:
        _await_start(shell, answer.id)
        code = shell.attach(terminal_call.attach(answer.id, command=argv, tools=tools_uenv or ""))
    except JobEnded:
        over = True
        raise
    finally:
        _afterwards(shell, answer.id, keep=keep, over=over)
    return code


def _await_start(shell: Shell, reference: str) -> None:
    """Return when it runs, and print what it waits for. Raises `JobEnded` if it ends before."""
    began = shell.clock.monotonic()
    last = ""
    silent_since: float | None = None
    waits = [*_SLEEP_S]
    for pause_s in pauses(None, shell.clock):
        try:
            target = shell.call(operations.get_target(reference)).allocation
        except (RateLimited, Unavailable) as error:
            now = shell.clock.monotonic()
            if silent_since is None:
                silent_since = now
                shell.warn(f"{inert(error.message)}; still waiting.")
            elif now - silent_since > _SILENCE_S:
                raise
        else:
            silent_since = None
            if target.state is State.RUNNING:
                if last:
                    waited_s = shell.clock.monotonic() - began
                    shell.note(f"{inert(target.id)} runs, after {duration(waited_s)}")
                return
            if target.state.finished:
                raise JobEnded(f"Allocation {inert(target.id)} ended first: {target.state.value}")
            text = _waiting_text(target)
            if text != last:
                shell.note(f"{inert(target.id)} {text}")
                last = text
        shell.sleep(waits.pop(0) if waits else pause_s)


def _waiting_text(target: Target) -> str:
    if target.reason is None or target.reason.code == "None":
        return f"is {target.state.value}"
    return f"is {target.state.value}: {inert(target.reason.words)} ({inert(target.reason.code)})"


def _afterwards(shell: Shell, name: str, *, keep: bool, over: bool) -> None:
    if over:
        return
    if keep:
        shell.note(
            f"Allocation {inert(name)} is kept: `lattice attach {inert(name)}` goes back in, "
            f"`lattice cancel {inert(name)}` ends it."
        )
        return
    try:
        answer = shell.call(operations.cancel_session(name))
    except LatticeError as error:
        shell.warn(
            f"Allocation {inert(name)} could not be cancelled and goes on: "
            f"{inert(error.message)} Run `lattice cancel {inert(name)}`."
        )
        return
    if answer.cancelling:
        shell.note(f"Cancelling allocation {inert(name)}")


def _here() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - the text alone is wanted
    except OSError:
        return ""


SESSION = Command(
    "session",
    summary="An allocation with a terminal in it",
    text="Submits a job that only waits, says what it waits for, opens a shell on its first node "
    "as soon as it runs, and cancels it when the shell ends. A command behind `--` runs instead of "
    "the shell. Ctrl-C while waiting cancels it too.\n\n"
    "With --keep the allocation stays until its time is over; `lattice attach` goes back in. "
    "Options mean what they mean to `lattice submit`. The exit code is the shell's.",
    run=session,
    params=(
        Argument("argv", required=False, repeat=True, behind=True),
        Option("-N", "--nodes", metavar="COUNT", help="How many nodes: 2, or 2-4."),
        Option("-t", "--walltime", metavar="TIME", help="The longest it may run: 2h30m, 1-12:00."),
        Option("-G", "--gpus", metavar="COUNT", help="How many GPUs in all: 8, or a100:8."),
        Option("--vcluster", metavar="NAME", help="Where: its partition and QOS."),
        Option("-A", "--project", metavar="NAME", help="The Slurm account to charge."),
        Option("-J", "--name", metavar="NAME", help="What to call it; `session` unless given."),
        Option("-D", "--chdir", metavar="DIR", help="Start there, and nowhere else."),
        Option(
            "--sbatch",
            metavar="OPTIONS",
            read=shell_split,
            repeat=True,
            dashed=True,
            help="Pass these on: --sbatch --exclusive, --sbatch '--mem 4G -C a100'.",
        ),
        Option("--uenv", metavar="IMAGE", help="Mount this for the whole job, where Slurm can."),
        Option("--view", metavar="NAME", help="The view of that uenv."),
        Option(
            "--tools-uenv",
            metavar="IMAGE",
            help="Mount this squashfs image, for this terminal alone.",
        ),
        Option("--keep", help="Leave the allocation running when the terminal ends."),
    ),
    examples=(
        ("lattice session -G 1 -t 1h", "a shell on a GPU node for an hour"),
        ("lattice session -N 2 --keep", "and the allocation stays afterwards"),
        ("lattice session -G 1 -- python train.py --try", "one command, interactively"),
    ),
    permission="any role but ReadOnly, as your own Unix user",
)


def sessions(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the word people read in the usage line
    all: bool,  # noqa: A002 - the option's own word
) -> int:
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
