"""lattice-agent on the lab's nodes: the cluster's identity, certificates, a handle an agent.

A node begins with bootstrap files, as a site would put them into its image, and has a certificate
of its own soon after.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lab import addresses, slurm_config
from lab.certificates import Authority
from lab.files import give, owned_folder
from lab.gpus import NodeGpus
from lab.helper import NODE_PYTHON, NodeHelper
from lab.layout import Layout
from lab.process import Process
from lab.room import Room
from lab.users import AGENT_USER, SERVER_USER
from lattice.adapters.pki.authority import ClusterAuthority
from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.base.clock import SystemClock

EXECUTABLE = NODE_PYTHON.parent / "lattice-agent"
REPLICAS = tuple(f"{each}:{addresses.SERVER_AGENT_PORT}" for each in addresses.SERVER_ADDRESSES)

SPIFFE_DOMAIN = "lab.example"


class ClusterIdentity:
    """The authority of nodes and replicas, and the key of grants, as the servers have them."""

    def __init__(self, layout: Layout) -> None:
        folder = layout.state / "identity"
        self.paths = IdentityPaths(folder / "ca.crt", folder / "ca.key", layout.state / "grant.key")
        self.trust = folder / "trust.pem"
        """Every authority of the cluster that servers and nodes trust."""
        self.spiffe_bundle = folder / "spiffe.pem"
        """The authorities of `SPIFFE_DOMAIN`. Nobody has the key until a story puts its own in."""

    def prepare(self) -> None:
        """Make them if this lab has none yet."""
        create_identity(self.paths, SystemClock(), name=slurm_config.CLUSTER)
        self.paths.ca_cert.parent.chmod(0o755)
        for path in self.paths.all():
            give(path, SERVER_USER)
        if not self.trust.exists():
            self.trust.write_bytes(self.paths.ca_cert.read_bytes())
        if not self.spiffe_bundle.exists():
            made = Authority.create(self.spiffe_bundle.parent / "spiffe")
            self.spiffe_bundle.write_bytes(made.certificate.read_bytes())

    @property
    def authority(self) -> ClusterAuthority:
        return ClusterAuthority.load(self.paths.ca_cert, self.paths.ca_key, SystemClock())

    def issue(self, node: str, life: timedelta = timedelta(days=1)) -> dict[str, str]:
        """Bootstrap files of a node, by name: certificate, key, and whom to believe."""
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
        return {
            "boot.crt": authority.sign_node(request, node, life).pem.decode(),
            "boot.key": pem.decode(),
            "ca.crt": authority.bundle.decode(),
        }


def configuration(node: str, folder: Path, spool: Path, helper: Path) -> dict[str, object]:
    """What an agent is told of the lab; `folder` holds its bootstrap files and its state."""
    return {
        "node_id": node,
        "replicas": list(REPLICAS),
        "state_dir": str(folder / "state"),
        "bootstrap": {
            "cert": str(folder / "boot.crt"),
            "key": str(folder / "boot.key"),
            "ca": str(folder / "ca.crt"),
        },
        "slurmd": {"spool_dir": str(spool)},
        "helper": {"socket": str(helper)},
    }


class Agent:
    """The agent of one node: `process` is the handle, `helper` the root helper beside it."""

    def __init__(self, node: str, layout: Layout, room: Room) -> None:
        self.name = f"{node}.agent"
        self.helper = NodeHelper(node, layout, room)
        self.node = node
        self.folder = slurm_config.SlurmFiles(layout.state).node(node) / "agent"
        self.config_file = self.folder / "agent.yaml"
        self.changes: dict[str, object] = {}
        """Keys of its configuration that differ from the usual, from the next start on."""
        self.environment: dict[str, str] = {}
        """Likewise of its environment."""
        self.python = NODE_PYTHON
        """What runs it, likewise."""
        self.gpus = NodeGpus(node, layout)
        self.environment.update(self.gpus.environment)
        self._layout = layout
        self.process = Process(
            self.name,
            lambda: [str(self.python.parent / EXECUTABLE.name), "--config", str(self.config_file)],
            layout,
            room,
            user=AGENT_USER,
            cwd="/",
            env=self.environment,
            prepare=self.prepare,
        )

    def prepare(self) -> None:
        """Its folder, a first certificate and its configuration; and its GPUs."""
        self.gpus.prepare()
        owned_folder(self.folder, AGENT_USER)
        owned_folder(self.folder / "state", AGENT_USER)
        spool = self.folder.parent / "spool"
        told = configuration(self.node, self.folder, spool, self.helper.socket) | self.changes
        files = ClusterIdentity(self._layout).issue(self.node)
        files[self.config_file.name] = yaml.safe_dump(told, sort_keys=False)
        for name, content in files.items():
            file = self.folder / name
            file.unlink(missing_ok=True)
            file.touch(mode=0o600)
            file.write_text(content)
            give(file, AGENT_USER)

    def up(self) -> None:
        """With the helper beside it; whatever becomes of the agent later, the helper stays."""
        self.helper.up()
        self.process.up()

    def start(self) -> None:
        self.up()

    def start_anew(self) -> None:
        """Start without a certificate of its own, as a new node does.

        For tests after which the one in its state folder is spent: a renewal with that one would
        put the node in quarantine.
        """
        (self.folder / "state" / "identity.json").unlink(missing_ok=True)
        self.up()

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def freeze(self) -> None:
        self.process.freeze()

    def thaw(self) -> None:
        self.process.thaw()
