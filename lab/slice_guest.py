"""The guest of a GPU slice: an sshd in a network namespace of its own, with cards and a boot id.

The guest's kernel is the host's. What a real guest has of its own (boot id, size of the memory) is
mounted over the kernel's files in the guest's mount namespace. `tests/fakes/nvml` is its driver.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lab.command import run
from lab.gpus import STATE, NvmlState, build_library
from lattice.base.portable import guest_program

_GIB = 2**30
_READY_S = 20.0
_SHELL_FILE = Path("/root/.bashrc")


class SliceGuest:
    """One guest. `start` and `stop` may be repeated."""

    def __init__(
        self, folder: Path, name: str, number: int, *, cards: int = 1, host: str = ""
    ) -> None:
        """`number`: of its addresses, 0 to 63, unique on its host.

        `host`: the network namespace of its host; empty: this machine's.
        """
        self._folder = folder
        self._namespace = f"lat-{name}"[:15]
        self._link = f"lg{os.getpid() % 10_000}-{number}"[:13]
        base = 4 * number
        self.host_address, self.address = f"10.79.0.{base + 1}", f"10.79.0.{base + 2}"
        self.boot_id = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        self.memory_bytes = _GIB
        self.key_file = folder / "agent_key"
        self._host = ("-n", host) if host else ()
        self._daemon: subprocess.Popen[bytes] | None = None
        self._library = build_library(folder / "gpus")
        self.nvml = NvmlState(folder / "gpus" / "guest.state", cards=cards)
        self.has_own_kernel = True
        """False: it shows the host's boot id and memory."""
        self.before_program = ""
        """A shell command in front of the program."""

    @property
    def host_key(self) -> str:
        return (self._folder / "host_key.pub").read_text().strip()

    def create(self) -> None:
        """Keys and network."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.new_host_key()
        _keygen(self.key_file)
        run(["ip", "netns", "add", self._namespace])
        self._on_host(f"link add {self._link} type veth peer name eth0 netns {self._namespace}")
        self._on_host(f"addr add {self.host_address}/30 dev {self._link}")
        self._on_host(f"link set {self._link} up")
        for command in (
            "link set lo up",
            f"addr add {self.address}/30 dev eth0",
            "link set eth0 up",
        ):
            run(["ip", "-n", self._namespace, *command.split()])

    def new_host_key(self) -> None:
        _keygen(self._folder / "host_key")

    def start(self) -> None:
        """Start sshd, and return when it accepts connections."""
        self._write()
        command = " && ".join(
            (*self._mounts(), f"exec /usr/sbin/sshd -D -e -f {self._folder}/sshd")
        )
        log = (self._folder / "sshd.log").open("ab")
        with log:
            self._daemon = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace, "sh", "-c", command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        until = time.monotonic() + _READY_S
        while run(["ip", "netns", "exec", self._namespace, "ss", "-Htln"]).stdout.find(":22 ") < 0:
            if time.monotonic() > until or self._daemon.poll() is not None:
                raise RuntimeError((self._folder / "sshd.log").read_text()[-2000:])
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill sshd and everything in the guest."""
        self._signal(signal.SIGCONT)
        pids = run(["ip", "netns", "pids", self._namespace]).stdout.split()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if self._daemon is not None:
            self._daemon.wait(10)
            self._daemon = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """The guest still accepts connections, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def unplug(self) -> None:
        self._on_host(f"link set {self._link} down")

    def plug(self) -> None:
        self._on_host(f"link set {self._link} up")

    def remove(self) -> None:
        self.stop()
        run(["ip", "netns", "del", self._namespace])

    def _on_host(self, command: str) -> None:
        run(["ip", *self._host, *command.split()])

    def _signal(self, number: signal.Signals) -> None:
        if self._daemon is not None and self._daemon.poll() is None:
            os.kill(self._daemon.pid, number)

    def _mounts(self) -> Iterator[str]:
        yield "mkdir -p /run/sshd"
        # A shell that sshd starts reads this file of the account, whatever it does on this machine.
        if _SHELL_FILE.exists():
            yield f"mount --bind /dev/null {_SHELL_FILE}"
        if self.has_own_kernel:
            for name, target in (("boot_id", "/proc/sys/kernel/random/boot_id"),
                                 ("meminfo", "/proc/meminfo")):  # fmt: skip
                yield f"mount --bind {self._folder}/{name} {target}"

    def _write(self) -> None:
        folder = self._folder
        (folder / "boot_id").write_text(f"{self.boot_id}\n")
        total, free = self.memory_bytes // 1024, self.memory_bytes // 4096
        (folder / "meminfo").write_text(
            f"MemTotal:     {total} kB\nMemAvailable: {free} kB\nCached:       {free // 2} kB\n"
        )
        program = f"{sys.executable} -I {guest_program.__file__}"
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


@contextmanager
def slice_guest(
    folder: Path, name: str, number: int, *, cards: int = 1, host: str = ""
) -> Iterator[SliceGuest]:
    """A guest that runs, and is removed at the end."""
    guest = SliceGuest(folder, name, number, cards=cards, host=host)
    guest.create()
    try:
        guest.start()
        yield guest
    finally:
        guest.remove()


def _keygen(file: Path) -> None:
    file.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)])
