"""A compute node: its own network, host name, IPC, mounts, pids and control groups.

Pid 1 of the node is a shell that only reaps; killing it ends every process of the node, and the
link goes down first, so the cluster sees a power cut and not a farewell: no FIN, no RST.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from lab.addresses import SLURMD_PORT, node_address
from lab.agent import Agent
from lab.cgroup import ControlGroup, Hierarchies
from lab.command import LabError
from lab.helper import NodeHelper
from lab.layout import Layout
from lab.namespaces import lowest_mount_id_cpu
from lab.network import Direction, Network
from lab.process import Process
from lab.room import Room
from lab.shelter import SHELTER, kept_paths
from lab.slurm_config import SlurmFiles
from lab.slurm_root import SlurmRoot
from lab.teardown import end_all

# The control groups are mounted anew inside the node's cgroup namespace, over a fresh tmpfs, so
# that nothing of the host's trees stays in reach. bash reaps what is orphaned while `read` waits
# on a pipe that never says anything. A mount of sysfs shows the ports of the network namespace in
# which it was made: the node's own ones are laid over the host's.
_INIT = (
    SHELTER
    + r"""
set -e
root=$1 state=$2 node=$3 cpus=$4 groups=$5
shift 5
hostname "$node"
taskset -p -c "$cpus" $$ >/dev/null
shelter "$root" "$state" "$node" "$@"
mount -t tmpfs -o mode=755 tmpfs "$state/jobtmp"
held=$state/nodes/$node/cgroup
mkdir -p "$held"; mount -t tmpfs -o mode=755 tmpfs "$held"
for group in $groups; do
  mkdir "$held/${group%%=*}"; mount --bind "${group#*=}" "$held/${group%%=*}"
done
mount --move "$held" /sys/fs/cgroup
ports=$state/nodes/$node/sys
mkdir -p "$ports"; mount -t sysfs sysfs "$ports"
for each in class/net devices/virtual/net; do mount --bind "$ports/$each" "/sys/$each"; done
umount "$ports"
touch "$state/nodes/$node/ready"
exec 3<> <(:)
while :; do read -r -u 3 || :; done
"""
)


class Node:
    """One namespace node; `slurmd` is the handle on its daemon."""

    def __init__(
        self,
        name: str,
        layout: Layout,
        network: Network,
        hierarchies: Hierarchies,
        environment: dict[str, str],
        root: SlurmRoot | None = None,
    ) -> None:
        self.name = name
        self._root = root
        self.address = node_address(name)
        self._layout = layout
        self._network = network
        self._hierarchies = hierarchies
        self._folder = SlurmFiles(layout.state).node(name)
        self._group = ControlGroup(hierarchies, layout.cgroup(name), everywhere=True)
        self._outside = Room(self._group, environment, forks=True)
        self._inside = Room(self._group, environment, self._enter, forks=True)
        self._init = self._make_init(cpu=0)
        self.agent = Agent(name, layout, self._inside)
        self.slurmd = Process(
            f"{name}.slurmd",
            ["/usr/sbin/slurmd", "-D", "-N", name],
            layout,
            self._inside,
            probe=lambda: network.accepts(SLURMD_PORT, self.address),
        )

    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self._init.pid), "--all"]

    def _make_init(self, cpu: int) -> Process:
        ready = self._folder / "ready"
        groups = " ".join(
            f"{root.name}={root / self._layout.cgroup(self.name)}" for root in self._hierarchies.all
        )
        argv = [
            *("taskset", "-c", str(cpu), "nsenter", f"--net={self._network.node_file(self.name)}"),
            *("unshare", "--uts", "--ipc", "--cgroup", "--mount", "--propagation", "private"),
            *("--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
            *("bash", str(self._folder / "init"), str(self._root.folder) if self._root else ""),
            *(str(self._layout.state), self.name, f"0-{(os.cpu_count() or 1) - 1}", groups),
            *kept_paths(self._root),
        ]
        return Process(
            self.name, argv, self._layout, self._outside, probe=ready.exists, healthy_within_s=10
        )

    @property
    def alive(self) -> bool:
        return self._init.alive

    @property
    def pid(self) -> int:
        """The host's pid of the node's pid 1."""
        return self._init.pid

    @property
    def processes(self) -> list[Process]:
        beside = (self.agent.helper.process, self.agent.process)
        return [self._init, self.slurmd, *(each for each in beside if each.identity is not None)]

    def start(self) -> None:
        """Power on: network, namespaces, slurmd; waits until slurmd listens."""
        (self._folder / "spool").mkdir(parents=True, exist_ok=True)
        (self._folder / "init").write_text(_INIT)
        (self._folder / "ready").unlink(missing_ok=True)
        SlurmFiles(self._layout.state).job_tmp.mkdir(exist_ok=True)
        self._group.create()
        self._network.add_node(self.name, self.address)
        self._init = self._make_init(lowest_mount_id_cpu())
        self._init.up()
        self.slurmd.up()

    def power_cut(self) -> None:
        """Everything on the node ends at once, and the cluster hears nothing of it."""
        if self._network.node_file(self.name).exists():
            self._network.unplug(self.name)
        processes = (self._init, self.slurmd, self.agent.process, self.agent.helper.process)
        known = [process.identity for process in processes]
        survivors = end_all(self._group, lambda: filter(None, known))
        for process in processes:
            process.forget()
        if not survivors:
            self._group.remove()
        self._network.remove_node(self.name)
        if survivors:
            raise LabError(f"on {self.name} can't be ended: {'; '.join(map(str, survivors))}")

    def freeze(self) -> None:
        """Stop every process of the node; its kernel still answers pings and accepts TCP."""
        self._group.freeze()

    def thaw(self) -> None:
        self._group.freeze(False)

    def cut_off(self, direction: Direction = "both") -> None:
        self._network.cut_off(self.name, direction)

    def heal(self) -> None:
        self._network.heal(self.name)

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        input: str | None = None,  # noqa: A002  as subprocess calls it
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the node, as root or as an account."""
        return self._inside.run(
            argv, user=user, cwd="/", input=input, timeout_s=timeout_s, check=check
        )

    def helper(self, name: str, *flags: str) -> NodeHelper:
        """A second root helper on the node, with flags of its own; `up` starts it."""
        return NodeHelper(self.name, self._layout, self._inside, name=name, flags=flags)

    def argv(self, argv: Sequence[str], *, user: str | None = None) -> list[str]:
        """The command line that runs this on the node, for a caller with its own terminal."""
        return self._inside.argv(argv, user=user, cwd="/")
