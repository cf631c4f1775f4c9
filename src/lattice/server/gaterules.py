"""What must hold for the section `gate`: its key, and which engines people's profiles can reach.

A submission runs the caller's profile on the gate's host, so it reaches what listens on that host's
loopback. An engine that asks nobody for a credential would answer it: another's series, or the
agreed state itself.

Each rule reports and goes on; none raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from lattice.base.config import Report
from lattice.base.signing import SigningKey
from lattice.server.address import Address
from lattice.server.configchecks import check_file
from lattice.server.sections import ServerConfig


def judge_gate(config: ServerConfig, report: Report) -> None:
    """Every rule of the section."""
    gate = config.gate
    if gate.socket is None:
        if gate.grant_key is not None:
            report.problem("gate.grant_key", "needs gate.socket too", "gate.socket")
        if gate.own_network:
            report.problem("gate.own_network", "needs gate.socket too", "gate.socket")
        return
    if not gate.socket.is_absolute():
        report.problem("gate.socket", "must be an absolute path")
    if gate.grant_key is None and config.identity.grant_key is None:
        text = "needs a key to sign with: set gate.grant_key or identity.grant_key"
        report.problem("gate.socket", text, "gate.grant_key", "identity.grant_key")
    if gate.grant_key is not None and check_file(
        "gate.grant_key", gate.grant_key, report, secret=True
    ):
        try:
            SigningKey.load(gate.grant_key)
        except (ValueError, TypeError):
            report.problem("gate.grant_key", f"{gate.grant_key} holds no Ed25519 key")
    if not gate.own_network:
        for path, remedy in _open_engines(config):
            text = (
                "answers everyone on loopback, and people's profiles run there beside the gate: "
                f"{remedy}, or give the gate a network of its own (gate.own_network)"
            )
            report.problem(path, text)


def _open_engines(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """Engines on loopback that ask for no credential, and what would change that."""
    telemetry, quorum, slurm = config.telemetry, config.quorum, config.slurm
    if (
        _is_on_loopback(telemetry.tsdb_endpoint)
        and telemetry.tsdb_password_file is None
        and telemetry.tsdb_bearer_file is None
    ):
        yield "telemetry.tsdb_endpoint", "set telemetry.tsdb_username and its password"
    if quorum.cert is None:
        for index, endpoint in enumerate(quorum.endpoints):
            if _is_on_loopback(endpoint):
                yield f"quorum.endpoints[{index}]", "set quorum.cert and quorum.key"
    if _is_on_loopback(slurm.rest_url) and slurm.token_file is None:
        yield "slurm.rest_url", "set slurm.token_file, or use its unix socket"


def _is_on_loopback(url: str | None) -> bool:
    if not url or url.startswith("unix:"):
        return False
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return False
    return host is not None and Address(host, 1).is_loopback
