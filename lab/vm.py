"""The VM node: a real second kernel, with pure cgroup v2, BTF and kprobes.

Software emulation (KVM is not to be had everywhere) of one CPU with Debian's cloud kernel; boots
in some seconds and runs at a tenth of the speed. Slurm knows the node as FUTURE until it starts.
"""

from __future__ import annotations

import base64
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from lab.addresses import SLURMD_PORT, VM_ADDRESS, VM_NODE
from lab.agent import EXECUTABLE, ClusterIdentity, configuration
from lab.command import LabError, run
from lab.control import Control
from lab.helper import grant_keys, helper_argv
from lab.layout import Layout
from lab.network import Direction, Network
from lab.process import Process
from lab.slurm_config import SlurmFiles
from lab.users import AGENT_USER
from lab.vm_guest import INITRD_INIT, MODULES, guest_init

_MEMORY_MB = 1024
_BOOT_S = 240.0
# An old CPU is the quicker one to emulate: newer ones bring vector instructions that libraries
# then use, and the kernel's mitigations flush the emulator's caches at each system call. Without
# a random generator the guest waits 20 s for entropy.
_CPU = "Nehalem,+rdrand"
_KERNEL_WORDS = ("quiet", "panic=-1", "net.ifnames=0", "mitigations=off", "console=ttyS0")
_GUEST_HELPER = Path("/run/lattice-helper")
_MODULE_ROOT = Path("/lib/modules")


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
        self._root = self._share("root", "", "auto")
        self._home = self._share("home", "home", "none")
        self.machine = Process(
            self.name,
            self._qemu(),
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
        path = self._folder / f"{tag}.sock"
        source = f"{self._tree}/{folder}"
        options = ["-o", f"source={source}", "-o", f"cache={cache}", "-o", "sandbox=chroot"]
        return Process(
            f"{self.name}.{tag}",
            ["/usr/lib/qemu/virtiofsd", f"--socket-path={path}", *options],
            self._layout,
            self._control.machine,
            prepare=lambda: path.unlink(missing_ok=True),
            probe=path.exists,
            stop_signal=signal.SIGKILL,
        )

    def _qemu(self) -> list[str]:
        folder = self._folder
        words = [*_KERNEL_WORDS, f"guest={folder}/guest"]
        shares = [
            word
            for number, tag in enumerate(("root", "home"))
            for word in (
                *("-chardev", f"socket,id=share{number},path={folder}/{tag}.sock"),
                *("-device", f"vhost-user-fs-pci,chardev=share{number},tag={tag}"),
            )
        ]
        memory = f"memory-backend-memfd,id=memory,size={_MEMORY_MB}M,share=on"
        return [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", _CPU, "-smp", "1"),
            *("-m", str(_MEMORY_MB), "-object", memory, "-numa", "node,memdev=memory"),
            *("-kernel", str(folder / "kernel"), "-initrd", str(folder / "initrd")),
            *("-append", " ".join(words), "-nographic", "-nodefaults", "-no-reboot"),
            *("-serial", f"file:{folder}/console"),
            *("-serial", f"unix:{folder}/door,server=on,wait=off"),
            *("-netdev", f"tap,id=net,ifname=to-{self.name},script=no,downscript=no"),
            *("-device", "virtio-net-pci,netdev=net,romfile=", *shares),
        ]

    def start(self) -> None:
        """Boot; waits until slurmd in the guest listens."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        files = SlurmFiles(self._layout.state)
        (self._folder / "guest").write_text(guest_init(files, self.name, self.address))
        self._make_initrd()
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

    def _make_initrd(self) -> None:
        kernels = sorted(_MODULE_ROOT.glob("*-cloud-amd64"))
        if not kernels:
            raise LabError("the VM node needs Debian's linux-image-cloud-amd64")
        kernel, tree = kernels[-1], self._folder / "initrd.tree"
        shutil.rmtree(tree, ignore_errors=True)
        for name in ("bin", "modules", "proc", "sys", "dev", "lower", "upper", "root"):
            (tree / name).mkdir(parents=True)
        shutil.copy("/bin/busybox", tree / "bin")
        modules = _in_order(kernel)
        for file in modules:
            shutil.copy(file, tree / "modules")
        (tree / "modules" / "order").write_text("".join(f"{file.name}\n" for file in modules))
        (tree / "init").write_text(INITRD_INIT)
        (tree / "init").chmod(0o755)
        pack = "cd $0 && find . | cpio --quiet -o -H newc | zstd -q -1 >../initrd"
        run(["/bin/sh", "-c", pack, str(tree)])
        shutil.copy(f"/boot/vmlinuz-{kernel.name}", self._folder / "kernel")

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        input: str | None = None,  # noqa: A002  as subprocess calls it
        timeout_s: float = 120.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the guest, as root or as an account; one at a time."""
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        script = f"cd /; {shlex.join([*become, *argv])}"
        if input is not None:
            script = f"base64 -d <<<{base64.b64encode(input.encode()).decode()} | {{ {script}; }}"
        status, out, err = self._through_door(script, timeout_s)
        done = subprocess.CompletedProcess(list(argv), status, out, err)
        if check and status != 0:
            raise LabError(f"{shlex.join(argv)} on {self.name}: exit status {status}: {err or out}")
        return done

    def _through_door(self, script: str, timeout_s: float) -> tuple[int, str, str]:
        deadline = time.monotonic() + timeout_s
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(timeout_s)
            door.connect(str(self._folder / "door"))
            door.sendall(base64.b64encode(script.encode()) + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                if time.monotonic() > deadline:
                    raise LabError(f"{self.name}: no end after {timeout_s:g} s: {script}")
                answer += door.recv(65536)
        status, out, err = answer.decode().split(" ")
        return int(status), _decode(out), _decode(err)


def _decode(word: str) -> str:
    # One "=" too many, so that an empty output is still a word.
    return base64.b64decode(word.strip()[:-1]).decode(errors="replace")


def _in_order(kernel: Path) -> list[Path]:
    """The modules of the guest, each after those that it needs.

    Which need which differs from kernel to kernel; `modules.dep` lists the nearest first.
    """
    needs = {}
    for line in (kernel / "modules.dep").read_text().splitlines():
        file, _, others = line.partition(":")
        needs[Path(file).stem] = [kernel / each for each in (file, *others.split())]
    return list(dict.fromkeys(file for name in MODULES for file in reversed(needs[name])))
