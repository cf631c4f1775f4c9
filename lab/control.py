"""The control room: the network, mount and host-name namespaces that servers and users share.

A holder process keeps the mount and host-name namespaces alive; inside, /home is the lab's own
and /etc/hosts knows the lab's names. Everything that is not a node runs here.
"""

from __future__ import annotations

from dataclasses import replace

from lab.addresses import CONTROL_HOST, hosts_file
from lab.cgroup import ControlGroup, Hierarchies
from lab.layout import MARKER, Layout
from lab.network import Network
from lab.process import Process
from lab.room import SYSTEM_PATH, Room
from lab.shelter import SHELTER, kept_paths
from lab.slurm_root import SlurmRoot

_HOLD = (
    SHELTER
    + """
set -e
host=$1 root=$2 state=$3 ready=$4
shift 4
hostname "$host"
shelter "$root" "$state" control "$@"
touch "$ready"
exec sleep infinity
"""
)


class Control:
    """Creates the control namespaces; `room` is where its processes are started."""

    def __init__(
        self,
        layout: Layout,
        network: Network,
        hierarchies: Hierarchies,
        root: SlurmRoot | None = None,
    ) -> None:
        """`root` is where another release of Slurm stands; None for the machine's own."""
        self._layout = layout
        self._network = network
        self._group = ControlGroup(hierarchies, layout.cgroup("control"), everywhere=False)
        self._script = layout.etc / "control-init"
        self._ready = layout.processes / "control.ready"
        environment = {
            "PATH": SYSTEM_PATH,
            "LANG": "C.UTF-8",
            MARKER: layout.name,
            "SLURM_CONF": str(layout.slurm_conf),
        }
        self.host = Room(self._group, environment)
        """On the host itself, only counted with the lab's processes."""
        self.holder = Process(
            "control",
            [
                *("nsenter", f"--net={network.control_file}"),
                *("unshare", "--uts", "--mount", "--propagation", "private"),
                *("bash", str(self._script), CONTROL_HOST, str(root.folder) if root else ""),
                *(str(layout.state), str(self._ready), *kept_paths(root)),
            ],
            layout,
            self.host,
            probe=self._ready.exists,
            healthy_within_s=5,
        )
        self.room = Room(self._group, environment, self._enter)
        self.machine = self.room if root is None else replace(self.room, enter=self._enter_network)
        """The same with the machine's own programs, for parts that no release brings."""

    def _enter(self) -> list[str]:
        return [*self._enter_network(), "--mount"]

    def _enter_network(self) -> list[str]:
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--uts"]

    def up(self) -> None:
        self._layout.hosts_file.write_text(hosts_file())
        self._script.write_text(_HOLD)
        self._ready.unlink(missing_ok=True)
        self._group.create()
        self._network.create()
        self.holder.up()
