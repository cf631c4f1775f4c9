"""The agent's configuration from its file, the environment and flags, and its checks."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lattice.adapters.guest_ssh import BadGuest
from lattice.adapters.metricstore.writeurl import BadWriteUrl, checked_write_url
from lattice.agent.guest_address import guest_address
from lattice.agent.sections import AgentConfig, SpireSection
from lattice.base.config import ConfigReport, load, refused
from lattice.base.metrics_endpoint import local_metrics_address
from lattice.domain.joinkey import BadJoinKey, JoinKey, read_join_key
from lattice.domain.peer import BadName, checked_name
from lattice.domain.spiffe import BadTemplate, NodePath, workload_address
from lattice.probes.dcgm import BadExporter, address_of

DEFAULT_FILE = Path("/etc/lattice/agent.yaml")
_ENROL_PORT = 50051
_LINK_PORT = 50052


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The effective settings: names and addresses completed, secrets from the environment."""

    config: AgentConfig
    node: str
    enrol_at: tuple[str, ...]
    link_to: tuple[str, ...]
    spire_address: str = ""
    """The gRPC target of SPIRE's Workload API; empty if there is none."""
    enrol_token: str = field(default="", repr=False)
    agent_token: str = field(default="", repr=False)
    join: JoinKey | None = None


def load_agent_config(
    file: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str]
) -> AgentSettings:
    """Load the settings. Raises `ConfigurationError` with every problem.

    Flags override the file. Without `file` the default file is read if it exists.
    """
    config, report = _read(file, environ)
    config = _with_flags(config, flags)
    settings = _completed(config, report, environ)
    if report.problems:
        raise refused(report)
    return settings


def _read(file: Path | None, environ: Mapping[str, str]) -> tuple[AgentConfig, ConfigReport]:
    if file is None and not DEFAULT_FILE.exists():
        return load(AgentConfig, Path("/dev/null"), environ)
    return load(AgentConfig, file or DEFAULT_FILE, environ)


def _with_flags(config: AgentConfig, flags: Mapping[str, Any]) -> AgentConfig:
    given = {name: value for name, value in flags.items() if value not in (None, (), [])}
    own: dict[str, Any] = {
        name: given[name] for name in ("node_id", "state_dir", "enrol_token_file") if name in given
    }
    for name in ("quorum_endpoint", "replicas"):
        if name in given:
            own[name] = tuple(given[name])
    bootstrap = {
        name: given[f"bootstrap_{name}"]
        for name in ("cert", "key", "ca")
        if f"bootstrap_{name}" in given
    }
    expected = {
        name: given[name]
        for name in ("gpu_count", "gpu_type", "cpu_cores", "memory_gb")
        if name in given
    }
    return replace(
        config,
        **own,
        bootstrap=replace(config.bootstrap, **bootstrap),
        expected=replace(config.expected, **expected),
    )


def _completed(
    config: AgentConfig, report: ConfigReport, environ: Mapping[str, str]
) -> AgentSettings:
    node = config.node_id or socket.gethostname().partition(".")[0]
    try:
        checked_name(node)
    except BadName as fault:
        report.problem("node_id", str(fault))
    join = _join_key(config.join_key_file, report)
    named = config.quorum_endpoint or (join.servers if join else ())
    enrol_at = _addresses("quorum_endpoint", named, _ENROL_PORT, report)
    link_to = _addresses("replicas", config.replicas, _LINK_PORT, report)
    # A key that only root may read was used already: the identity names the servers.
    was_joined = join is None and config.join_key_file.exists()
    if not enrol_at and not link_to and not was_joined:
        report.problem("quorum_endpoint", "names no server: set it, or --quorum-endpoint")
    if (config.bootstrap.cert is None) != (config.bootstrap.key is None):
        report.problem("bootstrap", "cert and key go together")
    _check_measuring(config, report)
    _check_slices(config, report)
    beside = tuple(f"{address.rpartition(':')[0]}:{_LINK_PORT}" for address in enrol_at)
    return AgentSettings(
        config=config,
        node=node,
        enrol_at=enrol_at,
        link_to=link_to or beside,
        spire_address=_spire(config.spiffe, environ, report),
        enrol_token=environ.get("LATTICE_ENROL_TOKEN", ""),
        join=join,
        agent_token=environ.get("LATTICE_AGENT_TOKEN", ""),
    )


def _spire(spiffe: SpireSection, environ: Mapping[str, str], report: ConfigReport) -> str:
    """The address of the Workload API, or an empty string."""
    text = spiffe.socket or environ.get("SPIFFE_ENDPOINT_SOCKET", "")
    if not text:
        return ""
    try:
        NodePath(spiffe.path)
    except BadTemplate as fault:
        report.problem("spiffe.path", str(fault))
    try:
        return workload_address(text)
    except BadTemplate as fault:
        report.problem("spiffe.socket", str(fault))
        return ""


def _join_key(file: Path, report: ConfigReport) -> JoinKey | None:
    try:
        return read_join_key(file.read_text("ascii"))
    except (FileNotFoundError, PermissionError):
        # Only root reads it in a package: the agent has its certificate by then.
        return None
    except (OSError, UnicodeDecodeError) as error:
        report.problem("join_key_file", f"{file}: {getattr(error, 'strerror', 'is no text')}")
    except BadJoinKey as fault:
        report.problem("join_key_file", f"{file} {fault}")
    return None


def _check_measuring(config: AgentConfig, report: ConfigReport) -> None:
    try:
        local_metrics_address(config.metrics.listen)
    except ValueError:
        report.problem(
            "metrics.listen",
            f"{config.metrics.listen[:80]!r} is neither unix:/PATH nor a loopback address and a "
            "port: an agent opens no port to the network",
        )
    try:
        if config.telemetry.dcgm_url:
            address_of(config.telemetry.dcgm_url)
    except BadExporter as fault:
        report.problem("telemetry.dcgm_url", str(fault))
    try:
        if config.telemetry.remote_write:
            checked_write_url(config.telemetry.remote_write)
    except BadWriteUrl as fault:
        report.problem("telemetry.remote_write", str(fault))


def _check_slices(config: AgentConfig, report: ConfigReport) -> None:
    names: set[str] = set()
    gpus: set[int] = set()
    for index, each in enumerate(config.slices):
        at = f"slices[{index}]"
        try:
            guest_address(each)
        except BadGuest as fault:
            report.problem(at, str(fault))
        if each.name in names:
            report.problem(at, f"{each.name!r} names two slices")
        if gpus.intersection(each.gpus):
            report.problem(at, "one of its gpus is in another slice too")
        names.add(each.name)
        gpus.update(each.gpus)


def _addresses(path: str, texts: Sequence[str], port: int, report: ConfigReport) -> tuple[str, ...]:
    found = []
    for text in texts:
        try:
            found.append(_address(text, port))
        except ValueError:
            report.problem(path, f"{text[:80]!r} is no host:port")
    return tuple(found)


def _address(text: str, port: int) -> str:
    url = urlsplit(text if "://" in text else f"https://{text}")
    if url.scheme not in {"http", "https"} or not url.hostname or url.path not in {"", "/"}:
        raise ValueError(text)
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{host}:{url.port or port}"
