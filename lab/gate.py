"""The submit gate of the lab: lattice-helper as root in the control room, beside the servers.

The key that signs grants is the servers' own; the gate holds the public half.
"""

from __future__ import annotations

import base64

from lab.files import give
from lab.layout import Layout
from lab.other_python import LAB_PYTHON
from lab.process import Process
from lab.room import Room
from lab.users import SERVER_USER
from lattice.base.signatures import SigningKey
from lattice.domain.administration import VerbGroup


class Gate:
    """`process` is the handle; `socket` is where the servers ask."""

    name = "gate"

    def __init__(self, layout: Layout, room: Room) -> None:
        self.folder = layout.state / "gate"
        self.socket = self.folder / "socket"
        self.grant_key = layout.state / "grant.key"
        self.public_keys = self.folder / "grant-keys"
        # Not the console script: it may be missing where the project was installed before it had
        # one, and isolated Python is how the unit of a real site starts it too.
        self.python = LAB_PYTHON
        """What runs it, from the next start on."""
        self.allowed: tuple[str, ...] = tuple(group.value for group in VerbGroup)
        """What administrators may change in Slurm, from the next start on."""
        self.process = Process(
            self.name,
            lambda: [
                *(str(self.python), "-I", "-m", "lattice.helper", "--role", "gate"),
                *("--socket", str(self.socket), "--allow-user", SERVER_USER),
                *("--grant-keys", str(self.public_keys), "--slurm-conf", str(layout.slurm_conf)),
                *("--timeout-s", "8"),
                *(word for group in self.allowed for word in ("--allow", group)),
            ],
            layout,
            room,
            prepare=self.prepare,
            probe=self.socket.exists,
            healthy_within_s=15,
        )

    @property
    def processes(self) -> list[Process]:
        return [self.process]

    def prepare(self) -> None:
        """The key pair, once a lab; a stale socket would look like a healthy gate."""
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        if not self.grant_key.exists():
            SigningKey.generate().save(self.grant_key)
        give(self.grant_key, SERVER_USER)
        public = SigningKey.load(self.grant_key).public
        self.public_keys.write_text(base64.b64encode(public).decode() + "\n")

    def up(self) -> None:
        self.process.up()

    def down(self) -> None:
        self.process.stop()
