"""`lattice admin ping`."""

from __future__ import annotations

from statistics import median

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.features.link import operations
from lattice.features.link.model import MOST_PINGS, NodeReach

_USUAL = 10


def read_count(text: str) -> int:
    """Parse the number of round trips; raises `UsageError`."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_PINGS):
        raise UsageError(f"{text!r} is no count", hint=f"A number from 1 to {MOST_PINGS}.")
    return int(text)


def ping(shell: Shell, *, node: str, count: int | None) -> int:
    answer = shell.call(operations.ping_node(node, count or _USUAL))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(_figures(answer))
    return 0


def _figures(answer: NodeReach) -> str:
    """One line of figures, one of how they were measured."""
    trips = sorted(answer.round_trips_ms)
    figures = f"median {median(trips):.1f} ms, least {trips[0]:.1f}, most {trips[-1]:.1f}"
    route = f"measured by {inert(answer.measured_by)}"
    if answer.linked_to and answer.linked_to != answer.measured_by:
        route += f", linked to {inert(answer.linked_to)}"
    return (
        f"{inert(answer.node)}  {len(trips)} round trips: {figures}\n"
        f"    opened in {answer.opened_ms:.1f} ms; {route}\n"
    )


PING = Command(
    "admin ping",
    summary="Measure the way to a node's agent",
    text="Sends messages through the server to the node's agent and back, over the same kind of "
    "stream that logs and terminals use. Fails in words where there is no way.",
    run=ping,
    params=(
        Argument("node", complete="nodes"),
        Option("--count", metavar="N", read=read_count, help="How many round trips; 10."),
    ),
    examples=(("lattice admin ping n1", "is the way to n1 sound?"),),
    permission="Operator or SystemAdmin",
)
