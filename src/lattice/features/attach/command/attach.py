"""`lattice attach`: a terminal, or a program, inside a running job."""

from __future__ import annotations

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.features.attach import terminal_call

_SHELL = "/bin/sh"


def read_rank(text: str) -> int:
    """Parse the number of a task; raises `UsageError`."""
    if not (text.isascii() and text.isdigit() and len(text) <= 7):
        raise UsageError(f"{text!r} is no rank", hint="Ranks are numbers from 0 on.")
    return int(text)


def attach(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the word people read in the usage line
    node: str | None,
    rank: int | None,
    command: str | None,
    tools_uenv: str | None,
    argv: tuple[str, ...],
) -> int:
    """Open a terminal and return the exit code of the remote program."""
    if command is not None and argv:
        raise UsageError("--command and a command behind `--` are two", hint="Give one of them.")
    if node is not None and rank is not None:
        raise UsageError("--node and --rank are two ways to name a place", hint="Give one of them.")
    name = shell.reference(id)
    if node is None and rank is None and shell.interactive and shell.live:
        from lattice.features.attach.command.picker import pick_node  # noqa: PLC0415

        node = pick_node(shell, name)
    program = (_SHELL, "-c", command) if command is not None else argv
    return shell.attach(
        terminal_call.attach(
            name, node=node or "", rank=rank, command=program, tools=tools_uenv or ""
        )
    )


ATTACH = Command(
    "attach",
    summary="A terminal inside a running job",
    text="Opens a shell in the job: as its owner, on its node, in its namespaces and limits, "
    "counted to it and ended with it. A command behind `--`, or --command, runs instead. Without a "
    "terminal, standard input, output and error are passed as they are.\n\n"
    "At the beginning of a line ~. ends the session and ~? lists what else there is. A connection "
    "that breaks is made anew, for a minute, and nothing of what was typed or shown is lost.\n\n"
    "The exit code is the remote one. Otherwise: 79 the job ended first, 75 the way to it is "
    "broken, 77 not permitted any more, 102 not there or not yours, 129 ended by ~.",
    run=attach,
    params=(
        Argument("id", required=False, complete="allocations"),
        Argument("argv", required=False, repeat=True, behind=True),
        Option("-n", "--node", metavar="NAME", help="On this one of its nodes."),
        Option("--rank", metavar="NUMBER", read=read_rank, help="On the node of this task."),
        Option(
            "-c",
            "--command",
            metavar="TEXT",
            dashed=True,
            help="Run this in a shell instead of a login.",
        ),
        Option(
            "--tools-uenv",
            metavar="IMAGE",
            help="Mount this squashfs image, for this terminal alone.",
        ),
    ),
    examples=(
        ("lattice attach 12345", "a shell on its first node"),
        ("lattice attach 12345 --node n2", "on another"),
        ("lattice attach 12345 -- nvidia-smi", "one command, with its exit code"),
        (
            "lattice attach 12345 -- tar c /tmp/run > run.tar",
            "bytes as they are",
        ),
    ),
    permission="the job's owner alone, whatever the role",
)
