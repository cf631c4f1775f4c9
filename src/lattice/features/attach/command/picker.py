"""Choose one of a job's nodes: a part of its name narrows the list, Enter takes the first."""

from __future__ import annotations

from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.nodeset import NodeSet
from lattice.features.attach import operations

_SHOWN = 24


def pick_node(shell: Shell, reference: str) -> str | None:
    """The chosen node; None if there is no choice, and then the server picks or refuses."""
    target = shell.call(operations.get_target(reference)).allocation
    if target.node_count < 2:
        return None
    try:
        names = tuple(NodeSet.parse(target.nodes))
    except ValueError:
        return None
    if len(names) < 2:
        return None
    shell.note(f"{inert(target.id)} runs on {len(names)} nodes:")
    return _narrow(shell, names)


def _narrow(shell: Shell, names: tuple[str, ...]) -> str:
    left = names
    while len(left) > 1:
        shell.note(f"  {_listed(left)}")
        typed = shell.ask(f"Node, or a part of its name ({inert(left[0])}): ").strip()
        if not typed:
            return left[0]
        if typed in left:
            return typed
        found = tuple(name for name in left if typed in name)
        if found:
            left = found
        else:
            shell.note(f"No node's name has {inert(typed)!r} in it.")
            left = names
    return left[0]


def _listed(names: tuple[str, ...]) -> str:
    shown = "  ".join(map(inert, names[:_SHOWN]))
    return f"{shown}  … {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
