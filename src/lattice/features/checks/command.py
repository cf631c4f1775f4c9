"""`lattice admin check`: measure nodes by a job on them, and what was measured before."""

from __future__ import annotations

from lattice.base.clock import pauses
from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.moment import parse_duration
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.nodeset import NodeSet
from lattice.features.checks import operations, render
from lattice.features.checks.model import (
    USUAL_WALLTIME_S,
    CheckedNode,
    NodeChecks,
    OpenCheck,
    SubmittedCheck,
)


def check(
    shell: Shell,
    *,
    node: tuple[str, ...],
    history: bool,
    partition: str | None,
    project: str | None,
    walltime: int | None,
    no_wait: bool,
    timeout: int | None,
) -> int:
    """Submit a check, and show its results when they are there."""
    try:
        nodes = NodeSet.parse(",".join(node)).fold()
    except ValueError as error:
        raise UsageError(f"These are no nodes: {error}.", hint="Write n1 n2 or n[1-3].") from None
    if history:
        if partition or project or walltime or no_wait or timeout is not None:
            raise UsageError("--history shows results, and takes no options of a check.")
        return _show_history(shell, nodes)
    if no_wait and timeout is not None:
        raise UsageError("--timeout goes with waiting.", hint="Leave --no-wait out.")
    submitted = shell.call(
        operations.check_nodes(
            nodes,
            partition=partition or "",
            project=project or "",
            walltime_s=walltime or USUAL_WALLTIME_S,
        )
    )
    for note in submitted.notes:
        shell.note(inert(note))
    shell.note(f"Submitted allocation {submitted.id}. It has {inert(submitted.nodes)} to itself.")
    if no_wait:
        return _show_submitted(shell, submitted)
    return _wait(shell, submitted, timeout)


def _show_submitted(shell: Shell, submitted: SubmittedCheck) -> int:
    if shell.output in {"json", "yaml"}:
        shell.document(submitted)
    else:
        shell.write(f"{submitted.id}\n")
    shell.note(f"lattice admin check {inert(submitted.nodes)} --history shows its results.")
    return 0


def _show_history(shell: Shell, nodes: str) -> int:
    answer = shell.call(operations.list_node_checks(nodes))
    _show(shell, answer)
    return 0


def _show(shell: Shell, answer: NodeChecks) -> None:
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return
    text = render.history(answer, shell.style, shell.clock.now())
    if text:
        shell.write(text)
    else:
        shell.note("These nodes were never checked.")


def _wait(shell: Shell, submitted: SubmittedCheck, timeout: int | None) -> int:
    before = ""
    for pause_s in pauses(timeout, shell.clock):
        answer = shell.call(operations.list_node_checks(submitted.nodes))
        waiting = next((each for each in answer.open if each.job_id == submitted.job_id), None)
        if waiting is None:
            return _show_results(shell, answer, submitted.job_id)
        state = render.open_text(waiting)
        if state != before:
            shell.note(state)
        before = state
        shell.sleep(max(pause_s, 1.0))
    shell.warn(_still(submitted, waiting if before else None))
    return 1


def _still(submitted: SubmittedCheck, waiting: OpenCheck | None) -> str:
    state = f" It is {waiting.state}." if waiting is not None and waiting.state else ""
    return (
        f"The check has no result yet.{state} It goes on; "
        f"`lattice cancel {submitted.id}` ends it, "
        f"`lattice admin check {inert(submitted.nodes)} --history` shows its result later."
    )


def _show_results(shell: Shell, answer: NodeChecks, job_id: int) -> int:
    own = NodeChecks(
        nodes=tuple(
            CheckedNode(
                node=each.node,
                checks=tuple(one for one in each.checks if one.job_id == job_id),
            )
            for each in answer.nodes
        )
    )
    _show(shell, own)
    sound = all(
        each.checks and not each.checks[0].warnings and not each.checks[0].reason
        for each in own.nodes
    )
    return 0 if sound else 1


CHECK = Command(
    "admin check",
    summary="Measure nodes: all-reduce, disk, links",
    text="Submits a job as you that has the nodes to itself, so it waits until nothing runs there "
    "and disturbs nobody. It measures the disk of each node, the link to the next one, and an "
    "all-reduce: of a node's GPUs by the tests of NCCL or RCCL where they are installed, and over "
    "the nodes by PyTorch's gloo, or else by TCP. The newest 8 results of a node are kept.\n\n"
    "A figure that is less than half of what is usual makes the node's health a warning, with the "
    "figures. The exit code is 1 if there is a warning or no result.",
    run=check,
    params=(
        Argument("node", repeat=True, complete="nodes"),
        Option("--history", help="Only show what was measured before."),
        Option("-p", "--partition", metavar="NAME", help="The job's partition."),
        Option("-A", "--project", metavar="NAME", help="The account that the job is charged to."),
        Option(
            "-t",
            "--walltime",
            metavar="TIME",
            read=parse_duration,
            help="How long the job may run: 10m if nothing is given.",
        ),
        Option("--no-wait", help="Return once the job is submitted."),
        Option(
            "--timeout",
            metavar="TIME",
            read=parse_duration,
            help="Wait for 90s, 5m, 2h at most; then the exit code is 1. The job goes on.",
        ),
    ),
    examples=(
        ("lattice admin check n[1-3]", "measure three nodes together"),
        ("lattice admin check n1 --history", "what was measured of n1 before"),
    ),
    permission="Operator or SystemAdmin",
)
