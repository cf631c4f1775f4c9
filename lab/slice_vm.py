"""The guest of a GPU slice as a virtual machine: a kernel, a boot and a memory of its own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from lab.bare_machine import BareMachine
from lab.command import LabError
from lab.slice_guest import SliceGuest

_READY_S = 120.0
_GROUP = "/sys/fs/cgroup/guest"
"""The control group of sshd and all that it starts."""


class VirtualGuest(SliceGuest):
    """A virtual machine with sshd; `create` boots it."""

    answers_within_s = 60.0

    def __init__(
        self, folder: Path, name: str, number: int, *, cards: int = 1, host: str = ""
    ) -> None:
        super().__init__(folder, name, number, cards=cards, host=host)
        self._machine = BareMachine(
            folder / "machine",
            commands=[f"ip addr add {self.address}/30 dev eth0"],
            shared=[folder],
            tap=self.link,
            network=host,
        )
        self.run = self._machine.run
        """Runs a command in the guest."""

    def _connect(self) -> None:
        self.on_host(f"tuntap add dev {self.link} mode tap")

    def create(self) -> None:
        super().create()
        self._machine.boot()
        self.boot_id = self.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()
        total = self.run(["grep", "^MemTotal:", "/proc/meminfo"]).stdout
        self.memory_bytes = int(total.split()[1]) * 1024
        # Once for the cache: read from a cold share, the driver would take longer than it may.
        self._write()
        self.run(["sh", str(self.folder / "report.sh")])

    def start(self) -> None:
        (self.folder / "start").write_text(
            f"mkdir -p {_GROUP}; echo 0 >{_GROUP}/cgroup.freeze\n"
            f"echo $$ >{_GROUP}/cgroup.procs\n{self.shell_command()}\n"
        )
        start = f"setsid unshare --mount sh {self.folder}/start >>{self.log} 2>&1 </dev/null &"
        self.run(["sh", "-c", start])
        self.wait_ready(lambda: self.run(["ss", "-Htln"]).stdout, within_s=_READY_S)

    def stop(self) -> None:
        gone = f"while read -r _ <{_GROUP}/cgroup.procs; do sleep 0.05; done"
        self.run(["sh", "-c", f"! cd {_GROUP} 2>&- || {{ echo 1 >cgroup.kill; {gone}; }}"])

    def freeze(self) -> None:
        self.run(["sh", "-c", f"echo 1 >{_GROUP}/cgroup.freeze"])

    def thaw(self) -> None:
        self.run(["sh", "-c", f"echo 0 >{_GROUP}/cgroup.freeze"])

    def remove(self) -> None:
        self._machine.end()
        with suppress(LabError):  # it was never made
            self.on_host(f"link del {self.link}")
