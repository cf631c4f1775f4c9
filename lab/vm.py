"""The VM node: a real second kernel, with pure cgroup v2, BTF and kprobes.

It is emulated (`lab.qemu`). Slurm knows the node as FUTURE until it starts.
"""

from __future__ import annotations

import pwd
import shlex
import signal
from pathlib import Path

import yaml

from lab.addresses import SLURMD_PORT, VM_ADDRESS, VM_NODE
from lab.agent import EXECUTABLE, ClusterIdentity, configuration
from lab.control import Control
from lab.helper import grant_keys, helper_argv
from lab.layout import Layout
from lab.network import Direction, Network
from lab.process import Process
from lab.qemu import Door, machine_argv, make_initrd, share_argv, share_socket
from lab.slurm_config import SlurmFiles
from lab.users import AGENT_USER
from lab.vm_guest import guest_init

_BOOT_S = 240.0
_GUEST_HELPER = Path("/run/lattice-helper")


class VirtualNode:
    """`start` boots it and waits for slurmd; `power_cut` is the plug pulled."""

    def __init__(self, layout: Layout, control: Control, network: Network) -> None:
        self.name = VM_NODE
        self.address = VM_ADDRESS
        self._layout = layout
        self._control = control
        self._network = network
        self._folder = layout.state / "vm"
        self._tree = self._folder / "tree"
        self.run = Door(self.name, self._folder).run
        """Runs a command in the guest."""
        self._root = self._share("root", "", "auto")
        self._home = self._share("home", "home", "none")
        self.machine = Process(
            self.name,
            machine_argv(self._folder, f"to-{self.name}", ("root", "home")),
            layout,
            control.machine,
            probe=lambda: network.accepts(SLURMD_PORT, VM_ADDRESS),
            healthy_within_s=_BOOT_S,
            stop_signal=signal.SIGKILL,
        )

    @property
    def processes(self) -> list[Process]:
        return [self._root, self._home, self.machine]

    @property
    def alive(self) -> bool:
        return self.machine.alive

    @property
    def console(self) -> str:
        """What the guest's kernel and slurmd printed."""
        return (self._folder / "console").read_text(errors="replace")

    def _share(self, tag: str, folder: str, cache: str) -> Process:
        # No cache for /home: other nodes write there at the same time.
        path = share_socket(self._folder, tag)
        return Process(
            f"{self.name}.{tag}",
            share_argv(self._folder, tag, f"{self._tree}/{folder}", cache),
            self._layout,
            self._control.machine,
            prepare=lambda: path.unlink(missing_ok=True),
            probe=path.exists,
            stop_signal=signal.SIGKILL,
        )

    def start(self) -> None:
        """Boot; waits until slurmd in the guest listens."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        files = SlurmFiles(self._layout.state)
        (self._folder / "guest").write_text(guest_init(files, self.name, self.address))
        make_initrd(self._folder)
        # The control room's files, so that the guest gets its /home, its /etc/hosts and its Slurm.
        self._tree.unlink(missing_ok=True)
        self._tree.symlink_to(f"/proc/{self._control.holder.pid}/root")
        self._network.add_tap(self.name)
        self._root.up()
        self._home.up()
        self.machine.up()

    def start_agent(self) -> None:
        """lattice-agent in the guest, as on the other nodes; its log is in `agent_log`."""
        self._start_helper()
        folder = Path("/run/lattice-agent")
        files = ClusterIdentity(self._layout).issue(self.name)
        spool = SlurmFiles(self._layout.state).node(self.name) / "spool"
        told = configuration(self.name, folder, spool, _GUEST_HELPER / "socket")
        files["agent.yaml"] = yaml.safe_dump(told)
        # By number: the guest loses the list of accounts when the host writes a new one.
        account = pwd.getpwnam(AGENT_USER)
        own = f"{account.pw_uid}:{account.pw_gid}"
        self.run(["mkdir", "-p", str(folder / "state")])
        for name, content in files.items():
            self.run(["tee", str(folder / name)], input=content)
        self.run(["chown", "-R", own, str(folder)])
        self.run(["chmod", "-R", "go-rwx", str(folder)])
        become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}"]
        become += ["--clear-groups", "--bounding-set=-all", "--no-new-privs"]
        start = shlex.join([*become, str(EXECUTABLE), "--config", str(folder / "agent.yaml")])
        self.run(["bash", "-c", f"setsid {start} >/run/agent.log 2>&1 </dev/null &"])

    def _start_helper(self) -> None:
        """lattice-helper in the guest; its log is /run/helper.log."""
        self.run(["mkdir", "-p", str(_GUEST_HELPER)])
        self.run(["tee", str(_GUEST_HELPER / "grant-keys")], input=grant_keys(self._layout))
        start = shlex.join(helper_argv(self.name, _GUEST_HELPER))
        self.run(["bash", "-c", f"setsid {start} >/run/helper.log 2>&1 </dev/null &"])
        there = f"test -S {_GUEST_HELPER}/socket"
        self.run(["bash", "-c", f"for _ in {{1..300}}; do {there} && exit; sleep 0.1; done; false"])

    @property
    def agent_log(self) -> str:
        return self.run(["cat", "/run/agent.log"]).stdout

    def power_cut(self) -> None:
        if self.machine.identity is not None:
            self.machine.kill()
            self._root.kill()
            self._home.kill()
            self._network.remove_node(self.name)

    def freeze(self) -> None:
        self.machine.freeze()

    def thaw(self) -> None:
        self.machine.thaw()

    def cut_off(self, direction: Direction = "both") -> None:
        self._network.cut_off(self.name, direction)

    def heal(self) -> None:
        self._network.heal(self.name)
