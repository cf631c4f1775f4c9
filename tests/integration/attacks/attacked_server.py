"""A real lattice-server on loopback, over TLS, as an attacker with a token or without meets it.

The identity provider beside it is `tests.fakes.identity_provider`, whose keys can sign anything.
There is no Slurm: what asks for jobs is answered with 503, and everything before that is real.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import grpc
import trustme
import yaml

from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.base.clock import SystemClock
from tests.eventually import eventually
from tests.fakes.identity_provider import (
    AUDIENCE,
    EcSigner,
    HandClock,
    IdentityProvider,
    RsaSigner,
)

PROGRAM = Path(sys.prefix) / "bin" / "lattice-server"
_SOURCE = Path(__file__).parents[3] / "src"
"""A checkout beside the installed one attacks its own server."""
HOST = "127.0.0.1"
WHOAMI = "/v1/auth/whoami"
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answer:
    """One answer of the server over HTTPS."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in listeners]
    for each in listeners:
        each.close()
    return ports


class AttackedServer:
    """A configuration file, and the process that serves by it."""

    def __init__(self, folder: Path, idp: IdentityProvider) -> None:
        self.folder = folder
        self.idp = idp
        self.rsa = RsaSigner.make("rsa-1")
        self.ec = EcSigner.make("ec-1")
        idp.signers = [self.rsa, self.ec]
        self.rest_port, self.grpc_port, agent_port = free_ports(3)
        self._authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self._process: subprocess.Popen[bytes] | None = None
        leaf = self._authority.issue_cert(HOST, key_type=trustme.KeyType.ECDSA)
        leaf.cert_chain_pems[0].write_to_path(str(folder / "server.crt"))
        leaf.private_key_pem.write_to_path(str(folder / "server.key"))
        (folder / "server.key").chmod(0o600)
        identity = IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")
        create_identity(identity, SystemClock(), name="x")
        self.config: dict[str, dict[str, Any]] = {
            "cluster": {"name": "x"},
            "api": {
                "rest_listen": f"{HOST}:{self.rest_port}",
                "grpc_listen": f"{HOST}:{self.grpc_port}",
                "agent_listen": f"{HOST}:{agent_port}",
                "lane_listen": f"{HOST}:0",
                "tls_cert": str(folder / "server.crt"),
                "tls_key": str(folder / "server.key"),
                "oidc_issuer": idp.issuer,
                "oidc_client_id": "lattice-cli",
                "oidc_audience": AUDIENCE,
                "shutdown_grace_s": 1,
            },
            "identity": {
                "ca_cert": str(identity.ca_cert),
                "ca_key": str(identity.ca_key),
                "grant_key": str(identity.grant_key),
            },
            "slurm": {"rest_url": f"unix:{folder}/none.sock"},
        }

    @property
    def clock(self) -> HandClock:
        """Now, for who makes tokens."""
        return HandClock(datetime.now(UTC))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(_SOURCE)}

    @property
    def _argv(self) -> list[str]:
        file = self.folder / "server.yaml"
        file.write_text(yaml.safe_dump(self.config))
        return [str(PROGRAM), "--config", str(file), "--single", str(self.folder / "state")]

    def run(self, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Until it ends by itself."""
        return subprocess.run(
            self._argv,
            env={**self._environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @contextmanager
    def serving(self, *, keys: bool = True) -> Iterator[None]:
        """While it serves; with the `keys` of its provider, unless they are what is attacked."""
        with (
            (self.folder / "log").open("ab") as log,
            subprocess.Popen(self._argv, stderr=log, env=self._environment) as process,
        ):
            self._process = process
            try:
                eventually(self._is_up, pause_s=0.05)
                if keys:
                    # They come a moment after the first answer.
                    eventually(lambda: self.ask(WHOAMI, headers=self.bearer()).status == 200)
                yield
                assert process.poll() is None, "the attack ended the server"
            finally:
                process.kill()

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        with suppress(OSError):
            return bool(self.ask("/healthz").json["state"] == "ok")
        return False

    def tls(self, *protocols: str) -> ssl.SSLContext:
        # The system's authorities are no part of it, and take longer to read than an attack.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._authority.configure_trust(context)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context

    def dial(self, port: int, *protocols: str) -> ssl.SSLSocket:
        """A connection on which anything can be sent."""
        plain = socket.create_connection((HOST, port), timeout=_PATIENCE_S)
        return self.tls(*protocols).wrap_socket(plain, server_hostname=HOST)

    @contextmanager
    def connection(self) -> Iterator[HTTPSConnection]:
        """One that carries many requests."""
        client = HTTPSConnection(HOST, self.rest_port, context=self.tls(), timeout=_PATIENCE_S)
        try:
            yield client
        finally:
            client.close()

    def ask(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Answer:
        """One request on a connection of its own; a `body` is sent as JSON."""
        with self.connection() as client:
            return ask_on(client, path, method, headers, body)

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """A connection of its own to the gRPC port."""
        credentials = grpc.ssl_channel_credentials(self._authority.cert_pem.bytes())
        apart = (("grpc.use_local_subchannel_pool", 1),)
        with grpc.secure_channel(f"{HOST}:{self.grpc_port}", credentials, apart) as channel:
            yield channel

    def token(self, sub: str = "u-1", **claims: Any) -> str:
        given = {"preferred_username": "alice", **claims}
        return self.idp.token(self.ec, self.clock, sub=sub, **given)

    def bearer(self, sub: str = "u-1", **claims: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(sub, **claims)}"}

    def logged(self, event: str) -> list[dict[str, Any]]:
        # Of a line that is just being written there is a part.
        lines = (self.folder / "log").read_text().rpartition("\n")[0].splitlines()
        told = [json.loads(line) for line in lines if line.startswith("{")]
        return [each for each in told if each.get("event") == event]

    def memory_bytes(self) -> int:
        """What the process holds now."""
        return self._memory("VmRSS")

    @contextmanager
    def grows_at_most(self, size_bytes: int) -> Iterator[None]:
        """Its memory never has more than so much on top, also for a moment."""
        # Linux puts the peak back to what is held now.
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        before = self.memory_bytes()
        yield
        assert self._memory("VmHWM") - before <= size_bytes

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        facts = dict(line.split(":", 1) for line in status.splitlines())
        return int(facts[name].split()[0]) * 1024


def ask_on(
    client: HTTPSConnection,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: Any = None,
) -> Answer:
    """One request on a connection that is open."""
    given = dict(headers or {})
    content = None
    if body is not None:
        content = json.dumps(body).encode()
        given.setdefault("Content-Type", "application/json")
    client.request(method, path, content, given)
    answer = client.getresponse()
    told = {name.lower(): value for name, value in answer.getheaders()}
    return Answer(answer.status, told, answer.read())
