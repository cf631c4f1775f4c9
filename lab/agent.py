"""lattice-agent on the lab's nodes: the cluster's identity, certificates, a handle an agent.

A node begins with bootstrap files, as a site would put them into its image, and has a certificate
of its own soon after.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lab import addresses, slurm_config
from lab.files import give, owned_folder
from lab.layout import Layout
from lab.process import Process
from lab.room import Room
from lab.users import AGENT_USER, SERVER_USER
from lattice.adapters.pki.authority import ClusterAuthority
from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.base.clock import SystemClock

EXECUTABLE = Path(sys.prefix) / "bin" / "lattice-agent"
REPLICAS = tuple(f"{each}:{addresses.SERVER_AGENT_PORT}" for each in addresses.SERVER_ADDRESSES)


class ClusterIdentity:
    """The authority of nodes and replicas, and the key of grants, as the servers have them."""

    def __init__(self, layout: Layout) -> None:
        folder = layout.state / "identity"
        self.paths = IdentityPaths(folder / "ca.crt", folder / "ca.key", layout.state / "grant.key")

    def prepare(self) -> None:
        """Make them if this lab has none yet."""
        create_identity(self.paths, SystemClock(), name=slurm_config.CLUSTER)
        self.paths.ca_cert.parent.chmod(0o755)
        for path in self.paths.all():
            give(path, SERVER_USER)

    @property
    def authority(self) -> ClusterAuthority:
        return ClusterAuthority.load(self.paths.ca_cert, self.paths.ca_key, SystemClock())

    def issue(self, node: str, folder: Path, life: timedelta = timedelta(days=1)) -> None:
        """`boot.crt` and `boot.key` for a node, and `ca.crt`, into a folder of the agent's."""
        key = ec.generate_private_key(ec.SECP256R1())
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([]))
            .sign(key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )
        authority = self.authority
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        for name, content in (
            ("boot.crt", authority.sign_node(request, node, life).pem),
            ("boot.key", pem),
            ("ca.crt", authority.bundle),
        ):
            file = folder / name
            file.unlink(missing_ok=True)
            file.touch(mode=0o600)
            file.write_bytes(content)
            give(file, AGENT_USER)


class Agent:
    """The agent of one node: `process` is the handle."""

    def __init__(
        self, node: str, layout: Layout, room: Room, servers: Sequence[str] = REPLICAS
    ) -> None:
        self.name = f"{node}.agent"
        self.node = node
        self.folder = slurm_config.SlurmFiles(layout.state).node(node) / "agent"
        self.config_file = self.folder / "agent.yaml"
        self.changes: dict[str, object] = {}
        """Keys of its configuration that differ from the usual, from the next start on."""
        self._layout = layout
        self._servers = tuple(servers)
        self.process = Process(
            self.name,
            [str(EXECUTABLE), "--config", str(self.config_file)],
            layout,
            room,
            user=AGENT_USER,
            cwd="/",
            prepare=self.prepare,
        )

    def prepare(self) -> None:
        """Its folder, a first certificate and its configuration."""
        owned_folder(self.folder, AGENT_USER)
        owned_folder(self.folder / "state", AGENT_USER)
        ClusterIdentity(self._layout).issue(self.node, self.folder)
        self.config_file.write_text(yaml.safe_dump(self.configuration(), sort_keys=False))
        give(self.config_file, AGENT_USER)

    def configuration(self) -> dict[str, object]:
        """What the agent is told of the lab."""
        return {
            "node_id": self.node,
            "replicas": list(self._servers),
            "state_dir": str(self.folder / "state"),
            "bootstrap": {
                "cert": str(self.folder / "boot.crt"),
                "key": str(self.folder / "boot.key"),
                "ca": str(self.folder / "ca.crt"),
            },
            "slurmd": {"spool_dir": str(self.folder.parent / "spool")},
            **self.changes,
        }

    def up(self) -> None:
        self.process.up()

    def start(self) -> None:
        self.process.up()

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def freeze(self) -> None:
        self.process.freeze()

    def thaw(self) -> None:
        self.process.thaw()
