"""Names of nodes that a caller gives, checked against the cluster. Pure."""

from __future__ import annotations

from lattice.base.errors import NotFound, Unavailable, UsageError
from lattice.base.text import cut
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import SchedulerReading


def known_nodes(names: str, reading: SchedulerReading) -> NodeSet:
    """The nodes of a list, each of which exists: only known names reach a command line.

    Raises `UsageError`, `NotFound`, and `Unavailable` while slurmctld does not answer.
    """
    known = {each.name for each in reading.cluster.nodes}
    try:
        nodes = NodeSet.parse(names, limit=max(len(known), 1))
    except ValueError as error:
        raise UsageError(
            f"{names[:80]!r} names no nodes: {error}.",
            hint="Write n1, n1,n2 or n[1-3]; `lattice nodes` lists them.",
        ) from None
    if not nodes:
        raise UsageError("No node is named.", hint="Write n1, n1,n2 or n[1-3].")
    missing = NodeSet(each for each in nodes if each not in known)
    if missing:
        raise absent_node(reading, missing)
    return nodes


def absent_node(reading: SchedulerReading, names: NodeSet | None = None) -> NotFound | Unavailable:
    """The error for a node that is not in this reading."""
    if reading.source.ok:
        which = f": {cut(str(names), 80)}" if names and len(names) > 1 else ""
        return NotFound(f"No node of that name{which}.", hint="`lattice nodes` lists all of them.")
    return Unavailable(
        "Whether that node exists can't be told now: slurmctld does not answer.",
        hint="Try again in a minute; `lattice nodes` shows what is known.",
    )
