"""`lattice nodes`: the list of nodes, a summary, or one in full."""

from __future__ import annotations

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.domain.node import NodeState
from lattice.features.nodes import operations, render
from lattice.features.nodes.model import NodeCard, NodeList


def read_states(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of node states. Raises `UsageError`."""
    words = tuple(word.strip().lower() for word in text.split(","))
    known = [state.value for state in NodeState]
    for word in words:
        if word not in known:
            raise UsageError(f"{word!r} is no node state", hint=f"States are {', '.join(known)}.")
    return words


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


def _warn_of_sources(shell: Shell, answer: NodeList | NodeCard) -> None:
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
            help="Only these: ready, draining, drained, degraded, down, unknown.",
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
