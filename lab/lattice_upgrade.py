"""Runs parts of a lab by another release of Lattice, a part at a time.

As the packages do it: a part is stopped, and started by the other release's programs with the same
configuration and state.
"""

from __future__ import annotations

from pathlib import Path

from lab.earlier import Earlier
from lab.helper import NODE_PYTHON
from lab.laboratory import Lab
from lab.other_python import LAB_PYTHON


class LatticeUpgrade:
    """`earlier` first, before the lab is up; then `server` and `node` change one at a time."""

    def __init__(self, lab: Lab, earlier: Earlier) -> None:
        earlier.ensure()
        self._lab = lab
        self._earlier = earlier

    def begin_earlier(self) -> None:
        """Have every part run by the earlier release, from its next start on."""
        for server in self._lab.servers:
            server.python = self._earlier.python
        self._lab.gate.python = self._earlier.python
        for name in self._lab.slurm.nodes:
            self._set_node(name, self._earlier.python)

    def server(self, number: int, *, back: bool = False) -> None:
        """One of the servers; with the first of them goes the gate that is beside them."""
        python = self._earlier.python if back else LAB_PYTHON
        server = self._lab.servers[number - 1]
        if number == 1:
            self._lab.gate.python = python
            self._lab.gate.process.restart()
        server.python = python
        server.process.restart()

    def node(self, name: str, *, back: bool = False) -> None:
        """The helper and the agent of a node."""
        self._set_node(name, self._earlier.python if back else NODE_PYTHON)
        agent = self._lab.node(name).agent
        agent.helper.process.restart()
        agent.process.restart()

    def _set_node(self, name: str, python: Path) -> None:
        agent = self._lab.node(name).agent
        agent.python = agent.helper.python = python
