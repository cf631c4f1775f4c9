"""`lattice admin enrol`, `agents`, `revoke` and `reinstate`."""

from __future__ import annotations

from collections.abc import Sequence

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.moment import parse_duration
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.features.agents import operations, render
from lattice.features.agents.model import Agent

_ADMIN = "SystemAdmin"


def enrol(shell: Shell, *, node: str, life: int | None, again: bool, network: Sequence[str]) -> int:
    """Print a key and how to use it."""
    made = shell.call(
        operations.create_enrolment(node, life or 0, again=again, networks=tuple(network))
    )
    shell.write_secretly()
    if shell.output in {"json", "yaml"}:
        shell.document(made)
    elif made.join_key:
        # The key alone is data: `lattice admin enrol n1 >join.key`.
        terms = render.key_terms(made, shell.clock.now(), again=again, networks=network)
        shell.note(terms)
        shell.write(f"{made.join_key}\n")
        shell.note(render.KEY_USE)
    else:
        shell.write(render.enrolment(made, shell.clock.now()))
    return 0


def agents(shell: Shell) -> int:
    answer = shell.call(operations.list_agents())
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    elif answer.agents:
        shell.write(render.agent_table(answer.agents, shell.style, shell.clock.now()))
    else:
        shell.note("No agent has enrolled yet. Begin with: lattice admin enrol NODE")
    for source in answer.sources:
        if not source.ok:
            shell.warn(f"{inert(source.name)} does not answer; this is the last known state.")
    return 0


def revoke(shell: Shell, *, node: str, reason: str | None) -> int:
    """Refuse a node's certificates; raises `UsageError` without a reason."""
    if not reason:
        raise UsageError(
            "A revocation needs a reason.",
            hint=f'Such as: lattice admin revoke {node} --reason "disk was lent out"',
        )
    return _show(shell, shell.call(operations.revoke_agent(node, reason)))


def reinstate(shell: Shell, *, node: str) -> int:
    """Trust a node's certificates again."""
    return _show(shell, shell.call(operations.restore_agent(node)))


def _show(shell: Shell, agent: Agent) -> int:
    if shell.output in {"json", "yaml"}:
        shell.document(agent)
    else:
        text, colour = render.trust(agent, shell.style, shell.clock.now())
        shell.write(f"{inert(agent.node)}  {shell.style.paint(inert(text), colour)}\n")
    return 0


ENROL = Command(
    "admin enrol",
    summary="Make a key with which a node, or each of many, enrols once",
    text="Makes a join key with which a node gets its first certificate, once; for a set of nodes, "
    "each of them once. It is shown here and nowhere else; the server keeps only its hash.",
    run=enrol,
    params=(
        Argument("node", complete="nodes"),
        Option(
            "--for", "--life", metavar="TIME", read=parse_duration, help="How long it is good: 1h."
        ),
        Option("--again", help="Each node may use it at each boot: for nodes without a disk."),
        Option(
            "--from",
            "--network",
            metavar="NETWORK",
            repeat=True,
            help="Only from this network, such as 10.1.0.0/16.",
        ),
    ),
    examples=(
        ("lattice admin enrol n1", "a key for n1, good for an hour"),
        ("lattice admin enrol 'n[1-500]' --for 7d", "one key for the image of 500 nodes"),
        (
            "lattice admin enrol 'n[1-500]' --again --for 90d --from 10.1.0.0/16",
            "for nodes that forget it at a boot, and for no other network",
        ),
    ),
    permission=_ADMIN,
)

AGENTS = Command(
    "admin agents",
    summary="Every node's agent: its link, certificate and trust",
    text="Shows for each agent whether it is linked, whether its helper answers, how much output "
    "waits on its disk, how far its clock is off, how long its certificate still lives, and "
    "whether it is believed. `-o wide` adds its server, since when, its disk and eBPF.",
    run=agents,
    examples=(
        ("lattice admin agents", "all of them"),
        ("lattice admin agents -o wide", "with servers, disks and eBPF"),
    ),
    permission="SystemAdmin or Operator",
)

REVOKE = Command(
    "admin revoke",
    summary="Refuse every certificate a node has now",
    text="From now on every certificate the node has is refused, on every server at once, and its "
    "links end. It comes back with a new enrolment; `reinstate` takes the revocation back.",
    run=revoke,
    params=(
        Argument("node", complete="nodes"),
        Option("--reason", metavar="TEXT", help="Why; kept and shown."),
    ),
    examples=(('lattice admin revoke n1 --reason "stolen"', "lock the node out"),),
    permission=_ADMIN,
)

REINSTATE = Command(
    "admin reinstate",
    summary="Take back a node's revocation or quarantine",
    text="Certificates of the node that have not expired are believed again.",
    run=reinstate,
    params=(Argument("node", complete="nodes"),),
    examples=(("lattice admin reinstate n1", "after it was looked at"),),
    permission=_ADMIN,
)
