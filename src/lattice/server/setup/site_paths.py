"""Where the files of a server are, as its packages expect them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SitePaths:
    """The paths as the server sees them. `root` is only where setup writes them."""

    state: Path
    root: Path = Path("/")
    etc: Path = Path("/etc/lattice")
    defaults: Path = Path("/etc/default")
    gate_socket: Path = Path("/run/lattice-gate/socket")
    rest_socket: Path = Path("/run/lattice-slurmrestd/socket")
    judge_socket: Path = Path("/run/lattice-slurmrestd-jwt/socket")
    """Of the slurmrestd that judges Slurm tokens."""

    def on_disk(self, path: Path) -> Path:
        """The path to write, below `root`."""
        return self.root / path.relative_to("/")

    @property
    def server_config(self) -> Path:
        return self.etc / "server.yaml"

    @property
    def client_config(self) -> Path:
        return self.etc / "config.yaml"

    @property
    def grant_keys(self) -> Path:
        """The public keys that the gate believes."""
        return self.etc / "grant-keys"

    @property
    def tls_authority(self) -> Path:
        return self.etc / "tls" / "ca.crt"

    @property
    def tls_authority_key(self) -> Path:
        return self.etc / "tls" / "ca.key"

    @property
    def tls_cert(self) -> Path:
        return self.etc / "tls" / "server.crt"

    @property
    def tls_key(self) -> Path:
        return self.etc / "tls" / "server.key"

    @property
    def server_defaults(self) -> Path:
        return self.defaults / "lattice-server"

    @property
    def gate_defaults(self) -> Path:
        return self.defaults / "lattice-gate"

    @property
    def slurmrestd_defaults(self) -> Path:
        return self.defaults / "lattice-slurmrestd"

    @property
    def judge_defaults(self) -> Path:
        return self.defaults / "lattice-slurmrestd-jwt"

    def identity(self, name: str) -> Path:
        """A file of the cluster's identity, by its key in the configuration."""
        return self.state / name.replace("ca_cert", "ca.crt").replace("_", ".")
