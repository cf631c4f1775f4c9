"""Replaces the programs of a running lab by those of a newer release of Slurm, a daemon at a time.

As an administrator does: slurmdbd first, then slurmctld with slurmrestd, then the nodes. Jobs go on
under the slurmstepd that has started them. MariaDB and every other engine goes on, too.
"""

from __future__ import annotations

from lab.addresses import SLURMDBD_PORT
from lab.command import LabError
from lab.laboratory import Lab
from lab.process import Process
from lab.room import become
from lab.shelter import SHELTER, kept_paths
from lab.slurm_root import RELEASES, SlurmRoot

_RENEW = (
    SHELTER
    + """
set -e
count=$1; shift
renew_programs "${@:1:$count}"
shift "$count"
exec "$@"
"""
)


class SlurmUpgrade:
    """Call `accounting`, `controller` and `node` in this order."""

    def __init__(self, lab: Lab, release: str) -> None:
        if RELEASES.index(release) <= RELEASES.index(lab.slurm.release) or lab.slurm.root is None:
            raise LabError(f"Slurm {lab.slurm.release} can't be upgraded to {release}")
        self._lab = lab
        self._root = SlurmRoot(release)
        self._root.ensure()

    def accounting(self) -> None:
        """Start the newer slurmdbd on the same database. As on a host of its own, nothing else."""
        slurm = self._lab.slurm
        slurm.dbd.stop()
        alone = ("unshare", "--mount", "--propagation", "private")
        daemon = (*become("slurm"), "/usr/sbin/slurmdbd", "-D")
        slurm.dbd = Process(
            slurm.dbd.name,
            [*alone, *self._renewed("slurmdbd", *daemon)],
            self._lab.layout,
            self._lab.control.room,
            probe=lambda: self._lab.network.accepts(SLURMDBD_PORT),
        )
        slurm.dbd.up()

    def controller(self) -> None:
        """slurmctld, slurmrestd, and the commands of people and servers."""
        slurm = self._lab.slurm
        slurm.ctld.stop()
        self._lab.ctl(self._renewed("control", "true"))
        slurm.ctld.up()
        for rest in (slurm.restd, slurm.restd_jwt):
            rest.stop()
            rest.up()

    def node(self, name: str) -> None:
        node = self._lab.node(name)
        node.slurmd.stop()
        node.run(self._renewed(name, "true"))
        node.slurmd.up()
        self._lab.slurm.wait_nodes([name])

    def _renewed(self, unit: str, *command: str) -> list[str]:
        """The command line that replaces the programs where it runs and then starts a command."""
        state = str(self._lab.layout.state)
        words = (str(self._root.folder), state, unit, *kept_paths(self._root))
        return ["bash", "-c", _RENEW, "renew", str(len(words)), *words, *command]
