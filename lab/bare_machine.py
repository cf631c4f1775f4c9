"""A virtual machine without a lab: another kernel under this machine's own file tree.

It has pure cgroup v2, sees every program and file of this machine, and can change none, but for
folders that are shared. It is emulated (`lab.qemu`).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.command import LabError
from lab.qemu import Door, machine_argv, make_initrd, share_argv, share_socket
from lab.vm_guest import UP, bare_init

_BOOT_S, _SHARED_S = 240.0, 10.0


class BareMachine:
    """`boot` it, `run` commands in it, `end` it."""

    def __init__(
        self,
        folder: Path,
        *,
        commands: Sequence[str] = (),
        shared: Sequence[Path] = (),
        tap: str = "",
        network: str = "",
    ) -> None:
        """`folder`: for its own files. `commands`: of its first program, after the usual ones.

        `shared`: folders that both sides may change. `tap`: its link, in the network namespace
        `network`; empty: none, and this machine's.
        """
        self._folder = folder
        self._shared = {f"folder{number}": each for number, each in enumerate(shared)}
        self._commands = commands
        self._tap = tap
        self._inside = ("nsenter", f"--net=/run/netns/{network}") if network else ()
        self._programs: list[subprocess.Popen[bytes]] = []
        self.run = Door("the virtual machine", folder).run
        """Runs a command in it."""

    def boot(self) -> None:
        """Return when it runs commands."""
        self._folder.mkdir(mode=0o700)
        (self._folder / "guest").write_text(bare_init(self._shared, self._commands))
        make_initrd(self._folder)
        # The cache would hide what changes on the other side.
        shares = {"root": ("/", "auto")} | {
            tag: (str(each), "none") for tag, each in self._shared.items()
        }
        for tag, (source, cache) in shares.items():
            self._begin(share_argv(self._folder, tag, source, cache))
            self._wait(share_socket(self._folder, tag).exists, _SHARED_S)
        self._begin([*self._inside, *machine_argv(self._folder, self._tap, tuple(shares))])
        self._wait(lambda: UP in self.console, _BOOT_S)

    def end(self) -> None:
        """Pull the plug."""
        for program in reversed(self._programs):
            program.kill()
            program.wait()
        self._programs.clear()

    @property
    def console(self) -> str:
        """What its kernel and first program printed."""
        file = self._folder / "console"
        return file.read_text(errors="replace") if file.exists() else ""

    def _begin(self, argv: Sequence[str]) -> None:
        with (self._folder / "log").open("ab") as log:
            # Nothing of it outlives the tests, even if they are killed.
            program = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._programs.append(program)

    def _wait(self, ready: Callable[[], bool], within_s: float) -> None:
        until = time.monotonic() + within_s
        while not ready():
            if time.monotonic() > until or any(each.poll() is not None for each in self._programs):
                log = (self._folder / "log").read_text(errors="replace")
                raise LabError(f"no virtual machine: {(log + self.console)[-2000:]}")
            time.sleep(0.05)
