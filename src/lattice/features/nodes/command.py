"""`lattice nodes`, and `lattice admin drain|undrain|disable|enable`."""

from __future__ import annotations

import gc
from collections.abc import Callable

from lattice.base.clock import pauses
from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.moment import parse_duration
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.node import NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import NodeAct
from lattice.features.nodes import operations, render
from lattice.features.nodes.model import NodeActs, NodeCard, NodeList, VclusterList


def read_states(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of node states. Raises `UsageError`."""
    states = tuple(word.strip().lower() for word in text.split(","))
    known = [state.value for state in NodeState]
    for word in states:
        if word not in known:
            raise UsageError(f"{word!r} is no node state", hint=f"States are {', '.join(known)}.")
    return states


def nodes(
    shell: Shell,
    *,
    name: str | None,
    state: tuple[tuple[str, ...], ...],
    partition: str | None,
    by: str | None,
) -> int:
    """Show the list, a summary, or one node in full."""
    if name is not None:
        if state or partition or by:
            raise UsageError(
                "--state, --partition and --by choose from the list and go with no name",
                hint=f"Leave them out: lattice nodes {name}",
            )
        return _show_card(shell, name)
    states = tuple(dict.fromkeys(word for group in state for word in group))
    answer = shell.call(operations.list_nodes(states=states, partition=partition or ""))
    style, now = shell.style, shell.clock.now()
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    elif answer.nodes and by:
        shell.write(render.summary_table(answer.nodes, by, style))
    elif answer.nodes:
        shell.write(render.node_table(answer.nodes, style, now))
    if not answer.nodes:
        shell.note("No node matches." if states or partition else "The cluster has no nodes.")
    _warn_of_sources(shell, answer)
    return 0


def _show_card(shell: Shell, name: str) -> int:
    answer = shell.call(operations.get_node(name))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(render.card(answer, shell.style, shell.clock.now()))
    _warn_of_sources(shell, answer)
    return 0


def _warn_of_sources(shell: Shell, answer: NodeList | NodeCard | VclusterList) -> None:
    for line in render.source_notes(answer.sources, shell.style, shell.clock.now()):
        shell.warn(line)


NODES = Command(
    "nodes",
    summary="The cluster's nodes and how each is",
    text="Answers what sinfo answers: each node's state, what is in use of it, and why it is not "
    "ready. With a NAME it shows one in full, and which of your allocations run there.",
    run=nodes,
    params=(
        Argument("name", required=False, complete="nodes"),
        Option(
            "-s",
            "--state",
            metavar="STATE",
            read=read_states,
            repeat=True,
            help="Only these: ready, draining, drained, claimed, degraded, down, unknown.",
        ),
        Option("-p", "--partition", metavar="NAME", help="Only those of one partition."),
        Option("--by", choices=("partition", "switch"), help="Numbers for each instead of a list."),
    ),
    examples=(
        ("lattice nodes", "all of them"),
        ("lattice nodes --by partition", "how much is free, and where"),
        ("lattice nodes -s down,drained", "what is broken, and why"),
        ("lattice nodes n1", "one in full"),
    ),
    permission="any role",
)


def vclusters(shell: Shell) -> int:
    """Show the list."""
    answer = shell.call(operations.list_vclusters())
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    elif answer.vclusters:
        shell.write(render.vcluster_table(answer.vclusters, shell.style))
    else:
        shell.note("The site has set up no vClusters; `lattice nodes --by partition` has numbers.")
    _warn_of_sources(shell, answer)
    return 0


VCLUSTERS = Command(
    "vclusters",
    summary="The cluster's vClusters and how their nodes are",
    text="A vCluster is a name for a partition, and for a QOS where the site chose one, with a "
    "kind: hpc, service or interactive. `lattice submit --vcluster NAME` submits to one.",
    run=vclusters,
    params=(),
    examples=(("lattice vclusters", "a row each"),),
    permission="any role",
)


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


def _operating(act: NodeAct) -> Callable[..., int]:
    """The function of a command that performs the act and no more."""

    def run(shell: Shell, *, node: tuple[str, ...], reason: str | None) -> int:
        _operate(shell, act, node, reason)
        return 0

    return run


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
        shell.note(render.undo_text(act, answer))
    return answer


def _wait_drained(shell: Shell, names: list[str], timeout: int | None) -> int:
    gc.enable()
    waiting = set(names)
    for pause_s in pauses(timeout, shell.clock):
        _check_drained(shell, waiting)
        if not waiting:
            return 0
        shell.sleep(pause_s)
    _check_drained(shell, waiting)
    if not waiting:
        return 0
    shell.warn(f"Not drained in time: {inert(NodeSet(sorted(waiting)).fold())}.")
    return 1


def _check_drained(shell: Shell, waiting: set[str]) -> None:
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
    run=_operating(NodeAct.UNDRAIN),
    params=(_NODE, _REASON),
    examples=(("lattice admin undrain n1", "n1 takes work again"),),
    permission="Operator or SystemAdmin; TenantAdmin, on nodes that serve no other tenant",
)

DISABLE = Command(
    "admin disable",
    summary="Take nodes out of service at once",
    text="Slurm's `down`: what runs on the node ends, or is queued again where it may be. To let "
    "it go on, drain instead. It is drained as well, or Slurm might take it back by itself.",
    run=_operating(NodeAct.DISABLE),
    params=(_NODE, _REASON),
    examples=(("lattice admin disable n1 --reason smoke", "now, whatever runs there"),),
    permission="Operator or SystemAdmin",
)

ENABLE = Command(
    "admin enable",
    summary="Put disabled nodes back into service",
    text="Puts a node that is down back into service, by whatever it was down; a drain on it is "
    "taken back too. One that does not answer Slurm will be down again soon.",
    run=_operating(NodeAct.ENABLE),
    params=(_NODE, _REASON),
    examples=(("lattice admin enable n1", "n1 takes work again"),),
    permission="Operator or SystemAdmin",
)
