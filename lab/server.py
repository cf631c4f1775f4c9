"""lattice-server in the lab: its configuration file and a handle a replica.

`configuration` is the one place that says how the lab's engines are handed to the server.
"""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from lab import addresses, slurm_config
from lab.agent import SPIFFE_DOMAIN, ClusterIdentity
from lab.certificates import SERVER_NAMES, Authority, Leaf
from lab.cgroup import ControlGroup, Hierarchies
from lab.command import LabError
from lab.etcd import Etcd
from lab.files import give, owned_folder
from lab.gate import Gate
from lab.layout import Layout
from lab.network import Network
from lab.oidc import AUDIENCE, CLIENT_ID
from lab.other_python import LAB_PYTHON
from lab.process import Process
from lab.room import Room
from lab.seaweedfs import (
    ACCESS_KEY,
    AUDIT_BUCKET,
    AUDIT_LOCK_DAYS,
    BUCKET,
    SECRET_KEY,
    SeaweedFS,
)
from lab.users import SERVER_USER
from lab.victoriametrics import PASSWORD, USERNAME, VictoriaMetrics

EXECUTABLE = LAB_PYTHON.parent / "lattice-server"
_UNKNOWN = re.compile(r"\s([a-z_]+(?:\.[a-z_]+)?): is not known here")

VCLUSTER_KINDS = {
    "batch": "hpc",
    "service": "service",
    "interactive": "interactive",
}
"""The partition `sensitive` has a view only where `lab.sensitive` gives it one."""


class Server:
    """One replica: `process` is the handle, `url` where it answers."""

    def __init__(
        self,
        number: int,
        parts: Collection[str],
        layout: Layout,
        room: Room,
        network: Network,
        *,
        settings: Mapping[str, dict[str, Any]],
    ) -> None:
        """`settings` are sections and keys of the configuration that differ from the usual."""
        self._settings = settings
        self.python = LAB_PYTHON
        """What runs it, from the next start on."""
        self.name = f"server-{number}"
        self.address = addresses.SERVER_ADDRESSES[number - 1]
        self.url = f"https://{self.address}:{addresses.SERVER_REST_PORT}"
        self.config_file = layout.state / self.name / "config.yaml"
        self._parts = frozenset(parts)
        self._layout = layout
        self._group = ControlGroup(
            Hierarchies.of_host(), f"{layout.cgroup('control')}/{self.name}", everywhere=False
        )
        self._room = replace(room, group=self._group)
        self._network = network
        # Without etcd one server has a database of its own, and a second one would not know it.
        alone = "etcd" not in self._parts and number == 1
        single = ("--single", str(layout.state / self.name / "state")) if alone else ()
        self.environment = {"HOME": f"/home/{SERVER_USER}"}
        """Of its process, from the next start on."""
        self.process = Process(
            self.name,
            lambda: [str(self._program), "--config", str(self.config_file), *single],
            layout,
            self._room,
            user=SERVER_USER,
            env=self.environment,
            cwd=f"/home/{SERVER_USER}",
            probe=self.healthy,
        )

    @property
    def _program(self) -> Path:
        return self.python.parent / "lattice-server"

    def prepare(self, authority: Authority) -> None:
        """A certificate and the configuration file."""
        leaf = authority.issue(self.name, self.name, names=SERVER_NAMES, owner=SERVER_USER)
        owned_folder(self.config_file.parent, SERVER_USER)
        configuration = self.configuration(leaf)
        self.write_config(configuration)
        if self.python != LAB_PYTHON:
            self.write_config(self._as_known(configuration))

    def _as_known(self, configuration: dict[str, Any]) -> dict[str, Any]:
        """Without keys that only newer releases know: they would stop the one that runs it."""
        self._group.create()
        argv = [str(self._program), "--config", str(self.config_file), "--check-config"]
        done = self._room.run(argv, user=SERVER_USER, check=False)
        for path in _UNKNOWN.findall(done.stdout + done.stderr):
            section, _, key = path.partition(".")
            if key:
                configuration[section].pop(key, None)
            else:
                configuration.pop(section, None)
        return configuration

    def bootstrap(self) -> None:
        """Begin the state in etcd; harmless where a lab of this name has begun it before."""
        argv = [str(self._program), "--config", str(self.config_file), "--bootstrap"]
        self._group.create()
        done = self._room.run(argv, user=SERVER_USER, check=False)
        if done.returncode != 0 and "bootstrapped already" not in done.stderr:
            raise LabError(f"the state can't be begun: {done.stderr}")

    def write_config(self, configuration: dict[str, Any]) -> None:
        """Replace the file; a running server reads it when it starts again."""
        self.config_file.write_text(yaml.safe_dump(configuration, sort_keys=False))
        self.config_file.chmod(0o600)
        give(self.config_file, SERVER_USER)

    def configuration(self, leaf: Leaf) -> dict[str, Any]:
        """What the server is told of the lab; sections of absent parts are left out."""
        sections: dict[str, Any] = {
            "cluster": {"name": slurm_config.CLUSTER},
            "api": {
                "rest_listen": f"{self.address}:{addresses.SERVER_REST_PORT}",
                "grpc_listen": f"{self.address}:{addresses.SERVER_GRPC_PORT}",
                "tls_cert": str(leaf.certificate),
                "tls_key": str(leaf.key),
                "agent_listen": f"{self.address}:{addresses.SERVER_AGENT_PORT}",
                "lane_listen": f"{self.address}:{addresses.SERVER_LANE_PORT}",
                "metrics_listen": f"{self.address}:{addresses.SERVER_METRICS_PORT}",
                "metrics_names": True,
            },
        }
        cluster = ClusterIdentity(self._layout)
        identity = cluster.paths
        sections["api"]["spiffe"] = {
            "trust_domain": SPIFFE_DOMAIN,
            "bundle": str(cluster.spiffe_bundle),
        }
        sections["identity"] = {
            "ca_cert": str(identity.ca_cert),
            "ca_key": str(identity.ca_key),
            "grant_key": str(identity.grant_key),
            "trust": str(cluster.trust),
        }
        if "oidc" in self._parts:
            sections["api"]["oidc_issuer"] = addresses.OIDC_ISSUER
            sections["api"]["oidc_client_id"] = CLIENT_ID
            sections["api"]["oidc_audience"] = AUDIENCE
        if "slurm" in self._parts:
            files = slurm_config.SlurmFiles(self._layout.state)
            sections["api"]["munge"] = True
            sections["api"]["munge_socket"] = str(files.munge_socket)
            sections["api"]["slurm_tokens"] = True
            sections["api"]["slurm_tokens_url"] = f"unix:{files.rest_jwt_socket}"
            sections["slurm"] = {
                "rest_url": f"unix:{files.rest_socket}",
                "config_file": str(self._layout.slurm_conf),
            }
            gate = Gate(self._layout, self._room)
            sections["gate"] = {"socket": str(gate.socket), "grant_key": str(gate.grant_key)}
            # Slurm has the plugin only where `lab.uenv_plugin` puts it.
            sections["uenv"] = {"image_option": "--uenv"}
            sections["vclusters"] = [
                {"name": name, "kind": kind, "partition": name}
                for name, kind in VCLUSTER_KINDS.items()
            ]
        sections |= self._engines()
        for name, keys in self._settings.items():
            sections[name] = sections.get(name, {}) | keys
        return sections

    def _engines(self) -> dict[str, Any]:
        sections: dict[str, Any] = {}
        engine = (self._layout, self._room, self._network)
        if "etcd" in self._parts:
            etcd = Etcd(*engine)
            sections["quorum"] = {
                "endpoints": etcd.endpoints,
                "ca": str(etcd.client.authority),
                "cert": str(etcd.client.certificate),
                "key": str(etcd.client.key),
            }
        if "seaweedfs" in self._parts:
            keys = self.config_file.parent
            sections["objects"] = {
                "url": f"s3://{BUCKET}/logs",
                "endpoint": SeaweedFS(*engine).endpoint,
                "access_key_file": str(self._key(keys / "s3.access", ACCESS_KEY)),
                "secret_key_file": str(self._key(keys / "s3.secret", SECRET_KEY)),
            }
            sections["audit"] = {"bucket": AUDIT_BUCKET, "retention_days": AUDIT_LOCK_DAYS}
        if "victoriametrics" in self._parts:
            sections["telemetry"] = {
                "tsdb_endpoint": VictoriaMetrics(*engine).endpoint,
                "tsdb_username": USERNAME,
                "tsdb_password_file": str(
                    self._key(self.config_file.parent / "tsdb.password", PASSWORD)
                ),
            }
        return sections

    def _key(self, file: Path, text: str) -> Path:
        file.touch(mode=0o600)
        file.write_text(f"{text}\n")
        give(file, SERVER_USER)
        return file

    def healthy(self) -> bool:
        trust = ssl.create_default_context(cafile=str(self._layout.certificates / "ca.crt"))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        with (
            self._network.entered(),
            suppress(OSError),
            opener.open(f"{self.url}/healthz", timeout=2),
        ):
            return True
        return False

    def up(self) -> None:
        self._group.create()
        self.process.up()

    def cut_off_state(self) -> None:
        """Drop what this server and etcd send each other, silently, until `heal_state`."""
        self.heal_state()
        table, ports = f"inet cut_{self._table}", ", ".join(map(str, addresses.ETCD_CLIENT_PORTS))
        chain = "type filter hook output priority 0; policy accept;"
        self._network.nft(
            [
                f"add table {table}",
                f"add chain {table} output {{ {chain} }}",
                f"add rule {table} output {self._group.in_nftables} tcp dport {{ {ports} }} drop",
            ]
        )

    def heal_state(self) -> None:
        table = f"inet cut_{self._table}"
        self._network.nft([f"add table {table}", f"delete table {table}"])

    @property
    def _table(self) -> str:
        return self.name.replace("-", "_")

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        self.up()

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def freeze(self) -> None:
        self.process.freeze()

    def thaw(self) -> None:
        self.process.thaw()
