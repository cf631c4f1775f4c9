"""`lattice admin drain|undrain|disable|enable`: take nodes out of service and return them."""

from __future__ import annotations

import gc

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.moment import parse_duration
from lattice.base.pace import pauses
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.node import NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import NodeAct
from lattice.features.nodes import operations, render
from lattice.features.nodes.model import NodeActs


def drain(
    shell: Shell, *, node: tuple[str, ...], reason: str | None, wait: bool, timeout: int | None
) -> int:
    """Drain, and with `wait` return only when all nodes are drained or down."""
    if timeout is not None and not wait:
        raise UsageError("--timeout goes with --wait.", hint="Add --wait.")
    answer = _operate(shell, NodeAct.DRAIN, node, reason)
    if not wait:
        return 0
    return _wait_drained(shell, [each.name for each in answer.nodes], timeout)


def undrain(shell: Shell, *, node: tuple[str, ...], reason: str | None) -> int:
    """Return drained nodes to service."""
    _operate(shell, NodeAct.UNDRAIN, node, reason)
    return 0


def disable(shell: Shell, *, node: tuple[str, ...], reason: str | None) -> int:
    """Take nodes out of service at once."""
    _operate(shell, NodeAct.DISABLE, node, reason)
    return 0


def enable(shell: Shell, *, node: tuple[str, ...], reason: str | None) -> int:
    """Return nodes that are down to service."""
    _operate(shell, NodeAct.ENABLE, node, reason)
    return 0


def _operate(shell: Shell, act: NodeAct, named: tuple[str, ...], reason: str | None) -> NodeActs:
    try:
        nodes = NodeSet.parse(",".join(named))
    except ValueError as error:
        raise UsageError(f"These are no nodes: {error}.", hint="Write n1 n2 or n[1-3].") from None
    answer = shell.call(operations.operate_node(act, nodes.fold(), reason=reason or ""))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(render.outcome_lines(act, answer, shell.style))
        shell.note(render.undo_words(act, answer))
    return answer


def _wait_drained(shell: Shell, names: list[str], timeout: int | None) -> int:
    gc.enable()
    waiting = set(names)
    for pause_s in pauses(timeout, shell.clock):
        _look(shell, waiting)
        if not waiting:
            return 0
        shell.sleep(pause_s)
    _look(shell, waiting)
    if not waiting:
        return 0
    shell.warn(f"Not drained in time: {inert(NodeSet(sorted(waiting)).fold())}.")
    return 1


def _look(shell: Shell, waiting: set[str]) -> None:
    for node in shell.call(operations.list_nodes()).nodes:
        if node.name not in waiting or node.state is NodeState.DRAINING:
            continue
        # Slurm is polled: right after the act a node may still have its old state.
        if node.state in {NodeState.DRAINED, NodeState.DOWN}:
            waiting.discard(node.name)
            shell.note(f"{inert(node.name)} is {node.state.value}.")


_NODE = Argument("node", repeat=True, complete="nodes")
_REASON = Option("--reason", metavar="TEXT", help="Why; your name is put before it.")

DRAIN = Command(
    "admin drain",
    summary="Let nodes end their work and take no more",
    text="Slurm's own drain: what runs goes on, nothing new starts. A node is draining while work "
    "is on it, then drained. Draining one that is drained already changes nothing, its reason "
    "neither.\n\nNodes are named as Slurm does: n1 n2 or n[1-3]; it is done to all of them or to "
    "none.",
    run=drain,
    params=(
        _NODE,
        _REASON,
        Option("--wait", help="Return when all of them are drained."),
        Option(
            "--timeout",
            metavar="TIME",
            read=parse_duration,
            help="With --wait: give up after 90s, 5m, 2h, with exit code 1.",
        ),
    ),
    examples=(
        ("lattice admin drain n1 --reason DIMM", "no new work on n1"),
        ("lattice admin drain n[1-3] --reason BIOS --wait", "return when they are empty"),
    ),
    permission="Operator or SystemAdmin; TenantAdmin, on nodes that serve no other tenant",
)

UNDRAIN = Command(
    "admin undrain",
    summary="Put drained nodes back into service",
    text="Works from drained only: while work still runs on a node it is refused, and says so.",
    run=undrain,
    params=(_NODE, _REASON),
    examples=(("lattice admin undrain n1", "n1 takes work again"),),
    permission="Operator or SystemAdmin; TenantAdmin, on nodes that serve no other tenant",
)

DISABLE = Command(
    "admin disable",
    summary="Take nodes out of service at once",
    text="Slurm's `down`: what runs on the node ends, or is queued again where it may be. To let "
    "it go on, drain instead. It is drained as well, or Slurm might take it back by itself.",
    run=disable,
    params=(_NODE, _REASON),
    examples=(("lattice admin disable n1 --reason smoke", "now, whatever runs there"),),
    permission="Operator or SystemAdmin",
)

ENABLE = Command(
    "admin enable",
    summary="Put disabled nodes back into service",
    text="Puts a node that is down back into service, by whatever it was down; a drain on it is "
    "taken back too. One that does not answer Slurm will be down again soon.",
    run=enable,
    params=(_NODE, _REASON),
    examples=(("lattice admin enable n1", "n1 takes work again"),),
    permission="Operator or SystemAdmin",
)
