"""The control room: the network, mount and host-name namespaces that servers and users share.

A holder process keeps the mount and host-name namespaces alive; inside, /home is the lab's own
and /etc/hosts knows the lab's names. Everything that is not a node runs here.
"""

from __future__ import annotations

from lab.addresses import CONTROL_HOST, hosts_file
from lab.cgroup import ControlGroup, Hierarchies
from lab.layout import MARKER, Layout
from lab.network import Network
from lab.process import Process
from lab.room import SYSTEM_PATH, Room
from lab.shelter import SHELTER, kept_paths

_HOLD = (
    SHELTER
    + """
set -e
host=$1 state=$2 ready=$3
shift 3
hostname "$host"
shelter "$state" control "$@"
touch "$ready"
exec sleep infinity
"""
)


class Control:
    """Creates the control namespaces; `room` is where its processes are started."""

    def __init__(self, layout: Layout, network: Network, hierarchies: Hierarchies) -> None:
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
                *("bash", str(self._script), CONTROL_HOST, str(layout.state), str(self._ready)),
                *kept_paths(),
            ],
            layout,
            self.host,
            probe=self._ready.exists,
            healthy_within_s=5,
        )
        self.room = Room(self._group, environment, self._enter)

    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--uts", "--mount"]

    def up(self) -> None:
        self._layout.hosts_file.write_text(hosts_file())
        self._script.write_text(_HOLD)
        self._ready.unlink(missing_ok=True)
        self._group.create()
        self._network.create()
        self.holder.up()
