"""The agent's parts for terminals: those of ordinary jobs, and those that are recorded."""

from __future__ import annotations

from collections.abc import Mapping

from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.terminals import HelperTerminals
from lattice.agent.config import AgentSettings
from lattice.base.clock import Clock
from lattice.domain.stream import PassOn, Serve, StreamKind
from lattice.features.attach.node.leftovers import Leftovers
from lattice.features.attach.node.recorded import NodeKeys, RecordedTerminals
from lattice.features.attach.node.terminals import TerminalPassing


class TerminalParts:
    """`aclose` ends recorded terminals: without an agent there is no recording."""

    def __init__(
        self, settings: AgentSettings, helper: HelperChannel, keys: NodeKeys, clock: Clock
    ) -> None:
        folder = settings.config.state_dir / "recordings"
        terminals = HelperTerminals(helper)
        recorded = RecordedTerminals(terminals, keys, folder, settings.node, clock)
        self.aclose = recorded.aclose
        self.serving: Mapping[StreamKind, Serve] = {
            StreamKind.RECORDINGS: Leftovers(recorded, folder)
        }
        self.pass_on: Mapping[StreamKind, PassOn] = {
            StreamKind.ATTACH: TerminalPassing(terminals, recorded)
        }
