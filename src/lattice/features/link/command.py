"""`lattice admin ping`: options to calls to text."""

from __future__ import annotations

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.features.link import api, render
from lattice.features.link.model import MOST_PINGS

_USUAL = 10


def read_count(text: str) -> int:
    """How many round trips; raises `UsageError`."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_PINGS):
        raise UsageError(f"{text!r} is no count", hint=f"A number from 1 to {MOST_PINGS}.")
    return int(text)


def ping(shell: Shell, *, node: str, count: int | None) -> int:
    """The way to a node, measured."""
    answer = shell.call(api.ping_node(node, count or _USUAL))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(render.reach(answer))
    return 0


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
