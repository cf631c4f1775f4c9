"""The agent's part of attach, put together."""

from __future__ import annotations

from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.terminals import HelperTerminals
from lattice.features.attach.node.passing import TerminalPassing


def terminal_passing(helper: HelperChannel) -> TerminalPassing:
    """Frames between the link and terminals in this node's jobs."""
    return TerminalPassing(HelperTerminals(helper))
