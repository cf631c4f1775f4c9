"""Whether a job can be entered now, and on which of its nodes. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta

from lattice.access.allocation_finder import Found
from lattice.base.errors import JobEnded, LatticeError, Unavailable, UsageError
from lattice.base.text import inert
from lattice.domain.allocation import Allocation, State, parse_reference
from lattice.domain.nodeset import NodeSet
from lattice.features.attach.model import CHECKPOINTED_TEXT, NOT_RUNNING_TEXT, Start

ENTERED = frozenset(
    {State.RUNNING, State.SUSPENDED, State.STOPPED, State.SIGNALING, State.RESIZING}
)
"""States in which a job has lasting processes. A suspended job can be examined too."""
_TAKEN_OFF = frozenset({State.REQUEUED, State.REQUEUE_HOLD, State.SPECIAL_EXIT, State.PREEMPTED})
_SHOWN = 8


def meant(found: Found, name: str) -> Allocation:
    """The allocation to enter: of an array or a het job, the named part. Raises `UsageError`."""
    reference = parse_reference(name)
    family = (found.allocation, *found.siblings)
    if reference.task_id is not None or reference.offset is not None or len(family) == 1:
        return found.allocation
    running = [each for each in family if each.state in ENTERED]
    if len(running) > 1:
        shown = ", ".join(each.id for each in running[:_SHOWN])
        raise UsageError(
            f"{len(running)} parts of {name} run: {shown}{', …' if running[_SHOWN:] else ''}.",
            hint=f"Name one of them: lattice attach {running[0].id}",
        )
    return running[0] if running else found.allocation


def refusal(allocation: Allocation) -> LatticeError | None:
    """Why it can't be entered now; None if it can."""
    if being_taken_off(allocation):
        return Unavailable(
            CHECKPOINTED_TEXT,
            hint=f"`lattice status {allocation.id}` shows when it runs again.",
        )
    if allocation.state in ENTERED:
        return None
    message = NOT_RUNNING_TEXT.format(state=allocation.state.value)
    if allocation.state.finished:
        return JobEnded(message, hint=f"`lattice logs {allocation.id}` shows what it wrote.")
    return Unavailable(message, hint=f"`lattice status {allocation.id}` shows how far it is.")


def being_taken_off(allocation: Allocation) -> bool:
    """True while Slurm preempts or requeues it."""
    if allocation.state in _TAKEN_OFF:
        return True
    announced, started = allocation.preempted_at, allocation.started
    return (
        announced is not None
        and not allocation.state.finished
        and not allocation.state.waiting
        and (started is None or announced >= started)
    )


def node_of(allocation: Allocation, start: Start) -> str:
    """The node to enter. Raises `UsageError`, or `Unavailable` while its nodes aren't known."""
    nodes = list(NodeSet.parse(allocation.nodes))
    if not nodes:
        raise Unavailable(
            f"On which nodes {allocation.id} runs is not known yet.", hint="Try again."
        )
    if start.node:
        if start.node not in nodes:
            raise UsageError(
                f"{allocation.id} does not run on {inert(start.node)[:100]}.",
                hint=f"It runs on {inert(allocation.nodes)[:200]}.",
            )
        return start.node
    return nodes[0] if start.rank is None else _node_of_rank(allocation, nodes, start.rank)


def _node_of_rank(allocation: Allocation, nodes: Sequence[str], rank: int) -> str:
    tasks = allocation.tasks
    if rank < 0 or (tasks is not None and rank >= tasks):
        raise UsageError(
            f"{allocation.id} has no rank {rank}.",
            hint=None if tasks is None else _ranks(tasks),
        )
    if len(nodes) == 1:
        return nodes[0]
    if tasks == len(nodes):
        # One task on each node, so every distribution is the same.
        return nodes[rank]
    raise UsageError(
        f"Which node runs rank {rank} is not known: Slurm does not say how it spread "
        f"{tasks if tasks is not None else 'the'} tasks over {len(nodes)} nodes.",
        hint=f"Name the node: --node {nodes[0]}",
    )


def _ranks(tasks: int) -> str:
    return f"Its ranks are 0 to {tasks - 1}." if tasks > 1 else "Its only rank is 0."


def ends_at(allocation: Allocation) -> datetime | None:
    """When its time limit ends it; None if unknown or unlimited."""
    if allocation.started is None or allocation.time_limit_s is None:
        return None
    return allocation.started + timedelta(seconds=allocation.time_limit_s + allocation.suspended_s)


def by_hand(allocation: Allocation, node: str, start: Start) -> str:
    """The `srun` command that does the same on a login node. It is only printed."""
    command = shlex.join(start.command) if start.command else '"$SHELL" -l'
    pty = "--pty " if start.terminal else ""
    return f"srun --jobid={allocation.job_id} --overlap {pty}-w {shlex.quote(node)} {command}"
