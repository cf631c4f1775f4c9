"""lattice-helper beside the agent of a node: root on that node, told whom to believe by a file.

It is in the node's namespaces and ends with the node.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lab import slurm_config
from lab.layout import Layout
from lab.other_python import LAB_PYTHON
from lab.process import Process
from lab.room import Room
from lab.users import AGENT_USER
from lattice.base.signatures import SigningKey

NODE_PYTHON = Path(os.environ.get("LATTICE_LAB_NODE_PYTHON") or LAB_PYTHON)
"""The Python of agents and helpers. That of another checkout runs nodes of another release."""

IMAGE_KEY = Ed25519PrivateKey.from_private_bytes(b"the lab signs images for terminals"[:32])
"""Signs images for sensitive work."""
_IMAGE_KEY = base64.b64encode(IMAGE_KEY.public_key().public_bytes_raw()).decode()


def helper_argv(node: str, folder: Path, python: Path = NODE_PYTHON) -> list[str]:
    """The command line. Not the console script: isolated Python is how a site's unit starts it."""
    return [
        *(str(python), "-I", "-m", "lattice.helper", "--role", "node", "--place", node),
        *("--socket", str(folder / "socket"), "--allow-user", AGENT_USER),
        *("--grant-keys", str(folder / "grant-keys")),
    ]


def grant_keys(layout: Layout) -> str:
    """What a helper has to know of the servers."""
    public = SigningKey.load(layout.state / "grant.key").public
    return base64.b64encode(public).decode() + "\n"


class NodeHelper:
    """`process` is the handle; `socket` is where the agent asks.

    One of another `name` stands beside the first, for tests that give it `flags` of its own.
    """

    def __init__(
        self,
        node: str,
        layout: Layout,
        room: Room,
        *,
        name: str = "helper",
        flags: Sequence[str] = (),
    ) -> None:
        self.name = f"{node}.{name}"
        self.folder = slurm_config.SlurmFiles(layout.state).node(node) / name
        self.socket = self.folder / "socket"
        self.environment: dict[str, str] = {}
        """What differs from the usual in its environment, from the next start on."""
        self.python = NODE_PYTHON
        """What runs it, likewise."""
        self._layout = layout
        self.process = Process(
            self.name,
            lambda: [*helper_argv(node, self.folder, self.python), *self._images(), *flags],
            layout,
            room,
            env=self.environment,
            prepare=self.prepare,
            probe=self.socket.exists,
            healthy_within_s=30,
        )

    def prepare(self) -> None:
        """The servers' public key; a stale socket would look like a healthy helper."""
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        (self.folder / "grant-keys").write_text(grant_keys(self._layout))
        (self.folder / "image-keys").write_text(f"{_IMAGE_KEY}\n")

    def _images(self) -> list[str]:
        """Helpers of older releases know nothing of signed images."""
        if self.python != LAB_PYTHON:
            return []
        return ["--image-keys", str(self.folder / "image-keys")]

    def up(self) -> None:
        self.process.up()

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()
