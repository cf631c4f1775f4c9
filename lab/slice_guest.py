"""The guest of a GPU slice: sshd with the agent's key, cards, and a network link to its host.

There are two kinds. `NamespaceGuest` is quick: an sshd in a network namespace of its own, with the
host's kernel. What a real guest has of its own (boot id, size of the memory) is mounted over the
kernel's files in its mount namespace. `lab.slice_vm` has a kernel of its own. `tests/fakes/nvml`
is the driver of both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from lab.command import LabError, run
from lab.gpus import STATE, NvmlState, build_library
from lattice.base.portable import guest_program

_GIB = 2**30
_READY_S = 20.0
_SHELL_FILE = Path("/root/.bashrc")
_SSHD = "/usr/sbin/sshd"

Guest = TypeVar("Guest", bound="SliceGuest")


class SliceGuest(ABC):
    """One guest. `start` and `stop` may be repeated."""

    answers_within_s = 4.0
    """An answer may take as long."""

    def __init__(
        self, folder: Path, name: str, number: int, *, cards: int = 1, host: str = ""
    ) -> None:
        """`number`: of its addresses, 0 to 63, unique on its host.

        `host`: the network namespace of its host; empty: this machine's.
        """
        self.folder = folder
        self.name = f"lat-{name}"[:15]
        self.link = f"lg{os.getpid() % 10_000}-{number}"[:13]
        base = 4 * number
        self.host_address, self.address = f"10.79.0.{base + 1}", f"10.79.0.{base + 2}"
        self.key_file = folder / "agent_key"
        self.host = host
        self._library = build_library(folder / "gpus")
        self.nvml = NvmlState(folder / "gpus" / "guest.state", cards=cards)
        self.before_program = ""
        """A shell command in front of the program, from the next start on."""
        self.boot_id = ""
        self.memory_bytes = 0

    @property
    def host_key(self) -> str:
        return (self.folder / "host_key.pub").read_text().strip()

    def create(self) -> None:
        """Keys, and the link to the host."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.new_host_key()
        _keygen(self.key_file)
        self._connect()
        self.on_host(f"addr add {self.host_address}/30 dev {self.link}")
        self.on_host(f"link set {self.link} up")

    @abstractmethod
    def _connect(self) -> None:
        """Make the host's end of the link."""

    @abstractmethod
    def remove(self) -> None:
        """Nothing of it stays."""

    @abstractmethod
    def start(self) -> None:
        """Start sshd, and return when it accepts connections."""

    @abstractmethod
    def stop(self) -> None:
        """Kill sshd, and everything that it started."""

    @abstractmethod
    def freeze(self) -> None:
        """The guest still accepts connections, and answers nothing."""

    @abstractmethod
    def thaw(self) -> None:
        """It answers again."""

    def restart(self) -> None:
        self.stop()
        self.start()

    def new_host_key(self) -> None:
        """For the next start."""
        _keygen(self.folder / "host_key")

    def unplug(self) -> None:
        self.on_host(f"link set {self.link} down")

    def plug(self) -> None:
        self.on_host(f"link set {self.link} up")

    def on_host(self, command: str) -> None:
        """A command of `ip` in the host's network."""
        run(["ip", *(("-n", self.host) if self.host else ()), *command.split()])

    def shell_command(self) -> str:
        """Starts sshd in the foreground, in a mount namespace that nobody else sees."""
        self._write()
        return " && ".join((*self._mounts(), f"exec {_SSHD} -D -e -f {self.folder}/sshd"))

    def _mounts(self) -> Iterator[str]:
        yield "mkdir -p /run/sshd"
        # A shell that sshd starts reads this file of the account, whatever it does on this machine.
        if _SHELL_FILE.exists():
            yield f"mount --bind /dev/null {_SHELL_FILE}"

    def wait_ready(self, listening: Callable[[], str], *, within_s: float) -> None:
        """Until sshd listens; `listening` lists the sockets of the guest."""
        until = time.monotonic() + within_s
        while ":22 " not in listening():
            if time.monotonic() > until:
                raise RuntimeError(self.log.read_text()[-2000:])
            time.sleep(0.05)

    @property
    def log(self) -> Path:
        """Of sshd."""
        return self.folder / "sshd.log"

    def _write(self) -> None:
        folder = self.folder
        program = f"{sys.executable} -IS {guest_program.__file__}"
        environment = f"env LD_LIBRARY_PATH={self._library.parent} {STATE}={self.nvml.file}"
        (folder / "report.sh").write_text(f"{self.before_program}\nexec {environment} {program}\n")
        key = self.key_file.with_suffix(".pub").read_text().strip()
        (folder / "authorized").write_text(f'restrict,command="sh {folder}/report.sh" {key}\n')
        (folder / "sshd").write_text(
            f"ListenAddress {self.address}\nHostKey {folder}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/authorized\nPermitRootLogin forced-commands-only\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
            "StrictModes no\nUseDNS no\nX11Forwarding no\nAllowTcpForwarding no\n"
        )


class NamespaceGuest(SliceGuest):
    """An sshd in a network namespace of its own, on the kernel of the host."""

    def __init__(
        self, folder: Path, name: str, number: int, *, cards: int = 1, host: str = ""
    ) -> None:
        super().__init__(folder, name, number, cards=cards, host=host)
        self.boot_id = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        self.memory_bytes = _GIB
        self.has_own_kernel = True
        """False: it shows the host's boot id and memory."""
        self._daemon: subprocess.Popen[bytes] | None = None

    def _connect(self) -> None:
        run(["ip", "netns", "add", self.name])
        self.on_host(f"link add {self.link} type veth peer name eth0 netns {self.name}")
        for command in (
            "link set lo up",
            f"addr add {self.address}/30 dev eth0",
            "link set eth0 up",
        ):
            run(["ip", "-n", self.name, *command.split()])

    def start(self) -> None:
        inside = ["ip", "netns", "exec", self.name]
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                [*inside, "sh", "-c", self.shell_command()],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.wait_ready(lambda: run([*inside, "ss", "-Htln"]).stdout, within_s=_READY_S)

    def stop(self) -> None:
        self._signal(signal.SIGCONT)
        pids = run(["ip", "netns", "pids", self.name]).stdout.split()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if self._daemon is not None:
            self._daemon.wait(10)
            self._daemon = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def remove(self) -> None:
        with suppress(LabError):  # it was never made
            self.stop()
            run(["ip", "netns", "del", self.name])

    def _signal(self, number: signal.Signals) -> None:
        if self._daemon is not None and self._daemon.poll() is None:
            os.kill(self._daemon.pid, number)

    def _mounts(self) -> Iterator[str]:
        yield from super()._mounts()
        if self.has_own_kernel:
            for name, target in (("boot_id", "/proc/sys/kernel/random/boot_id"),
                                 ("meminfo", "/proc/meminfo")):  # fmt: skip
                yield f"mount --bind {self.folder}/{name} {target}"

    def _write(self) -> None:
        super()._write()
        (self.folder / "boot_id").write_text(f"{self.boot_id}\n")
        total, free = self.memory_bytes // 1024, self.memory_bytes // 4096
        (self.folder / "meminfo").write_text(
            f"MemTotal:     {total} kB\nMemAvailable: {free} kB\nCached:       {free // 2} kB\n"
        )


@contextmanager
def running_guest(guest: Guest) -> Iterator[Guest]:
    """The guest runs, and is removed at the end."""
    try:
        guest.create()
        guest.start()
        yield guest
    finally:
        guest.remove()


def _keygen(file: Path) -> None:
    file.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)])
