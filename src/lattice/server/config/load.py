"""Loads the server's configuration, and checks the rules between its keys.

`sections` declares the keys. A section with its own module has its rules there. Those of `api` and
`identity` are in `api_rules`; all others, `gate` included, are here. Each rule reports its problems
and returns; none raises. A rule names the keys it depends on, so that one wrong value gives one
problem and no echo.

The rules of `gate` concern its key, and the engines that people's profiles can reach. A submission
runs the caller's profile on the gate's host, so it reaches what listens on that host's loopback. An
engine that needs no credential would answer it: with another's series, or with the agreed state
itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from urllib.parse import urlsplit

from lattice.base.address import Address
from lattice.base.config import ConfigReport, load, refused
from lattice.base.config_checks import check_file, check_url
from lattice.base.errors import ConfigurationError
from lattice.base.setting import Unread, setting_of
from lattice.base.signatures import SigningKey
from lattice.features.attach.section import judge_attach
from lattice.features.audit.section import judge_audit
from lattice.features.diag.section import judge_diag
from lattice.features.link.model import PROBE_EVERY_S
from lattice.features.sharing.section import judge_sharing
from lattice.features.state.section import judge_backup
from lattice.features.submit.section import judge_uenv
from lattice.server.config.api_rules import (
    judge_api,
    judge_identity,
    judge_munge,
    judge_slurm_tokens,
    judge_spiffe,
)
from lattice.server.config.engine_sections import judge_objects, judge_runs, judge_telemetry
from lattice.server.config.sections import ServerConfig
from lattice.server.config.sensitive_rules import judge_sensitive_work
from lattice.server.config.sensitive_section import judge_sensitive

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of `--check-config`. `config` is None if there are problems."""

    config: ServerConfig | None
    problems: tuple[str, ...]
    warnings: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """As text: problems first, a verdict last."""
        count = len(self.problems)
        verdict = "configuration: ok" if not count else f"configuration: {count} to correct"
        return (
            *(f"problem: {each}" for each in self.problems),
            *(f"warning: {each}" for each in self.warnings),
            verdict,
        )


def check_server_config(path: Path, environ: Mapping[str, str]) -> Checked:
    """Read and check, without raising."""
    try:
        config, report = load(ServerConfig, path, environ)
    except ConfigurationError as error:
        return Checked(None, error.problems, ())
    judge(config, report)
    warnings = report.warnings
    if report.problems:
        return Checked(None, report.problems, warnings)
    return Checked(replace(config, warnings=warnings), (), warnings)


def load_server_config(path: Path, environ: Mapping[str, str]) -> ServerConfig:
    """The configuration, or `ConfigurationError` with every problem in it."""
    config, report = load(ServerConfig, path, environ)
    judge(config, report)
    if report.problems:
        raise refused(report)
    return replace(config, warnings=report.warnings)


def judge(config: ServerConfig, report: ConfigReport) -> None:
    """Check every rule, in the order of the sections."""
    judge_api(config.api, report)
    judge_identity(config, report)
    judge_spiffe(config, report)
    judge_munge(config, report)
    judge_slurm_tokens(config, report)
    _slurm(config, report)
    judge_gate(config, report)
    judge_uenv(config.uenv, report)
    _vclusters(config, report)
    _engines(config, report)
    judge_objects(config.objects, report)
    judge_sharing(config.sharing, report)
    judge_backup(config.backup, report)
    url = config.objects.url
    judge_audit(config.audit, objects_in_s3=url is not None and url.is_s3, report=report)
    judge_attach(config.attach, report)
    judge_telemetry(config.telemetry, report)
    judge_runs(config.runs, report)
    judge_diag(config.diag, report)
    _nodes(config, report)
    _sensitive(config, report)
    for key in fields(ServerConfig):
        value, about = getattr(config, key.name), setting_of(key)
        if isinstance(value, Unread) and value.present and about is not None:
            report.warning(key.name, about.doc[:1].lower() + about.doc[1:])


def _slurm(config: ServerConfig, report: ConfigReport) -> None:
    slurm = config.slurm
    url = slurm.rest_url
    if url is None:
        report.problem("slurm.rest_url", "is missing: name slurmrestd, as unix:/path or a URL")
    elif url.startswith("unix:"):
        if not url.removeprefix("unix:").startswith("/"):
            report.problem("slurm.rest_url", "unix: is followed by an absolute path")
    else:
        check_url("slurm.rest_url", url, report, outside=("http", "https"))
    if url is not None and slurm.user is None and slurm.token_file is not None:
        report.problem("slurm.user", "is needed with slurm.token_file", "slurm.token_file")
    check_file("slurm.token_file", slurm.token_file, report, secret=True)
    check_file("slurm.config_file", slurm.config_file, report)
    if slurm.bin_dir is not None and not slurm.bin_dir.is_dir():
        report.problem("slurm.bin_dir", f"{slurm.bin_dir} is no folder")


def judge_gate(config: ServerConfig, report: ConfigReport) -> None:
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
    """Engines on loopback that need no credential, and what would change that."""
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


def _vclusters(config: ServerConfig, report: ConfigReport) -> None:
    names = Counter(each.name for each in config.vclusters)
    views = Counter((each.partition, each.qos) for each in config.vclusters)
    for index, each in enumerate(config.vclusters):
        path = f"vclusters[{index}]"
        if not _NAME.fullmatch(each.name):
            report.problem(f"{path}.name", f"{each.name[:60]!r}: letters, digits, '.', '_', '-'")
        if names[each.name] > 1:
            report.problem(f"{path}.name", f"{each.name!r} stands more than once")
        if not each.partition:
            report.problem(f"{path}.partition", "is empty")
        elif views[each.partition, each.qos] > 1:
            text = f"{each.partition!r} with the same QOS is viewed more than once"
            report.problem(f"{path}.partition", text)


def _engines(config: ServerConfig, report: ConfigReport) -> None:
    quorum, plain = config.quorum, ("http", "https")
    for index, endpoint in enumerate(quorum.endpoints):
        check_url(f"quorum.endpoints[{index}]", endpoint, report, outside=("https",))
    for name in ("ca", "cert", "key"):
        check_file(f"quorum.{name}", getattr(quorum, name), report, secret=name == "key")
    if (quorum.cert is None) != (quorum.key is None):
        have = "cert" if quorum.key is None else "key"
        text = "quorum.cert and quorum.key go together"
        report.problem(f"quorum.{have}", text, "quorum.cert", "quorum.key")
    for name in ("node_id", "data_dir", "peers"):
        if getattr(quorum, name) not in {None, ()}:
            text = "is not used: Raft is etcd's; name its members in quorum.endpoints"
            report.warning(f"quorum.{name}", text)
    check_url("storage.s3_endpoint", config.storage.s3_endpoint, report, outside=plain)
    for name in ("s3_endpoint", "bucket", "region", "access_key", "secret_key"):
        if getattr(config.storage, name) is not None:
            report.warning(f"storage.{name}", "is not used: the object store is named in objects")
    for name in ("nfs_home", "nfs_work"):
        if getattr(config.storage, name) is not None:
            text = "is not used: what a job has mounted is found on its nodes"
            report.warning(f"storage.{name}", text)


def _nodes(config: ServerConfig, report: ConfigReport) -> None:
    agent = config.node_agent
    if agent.degraded_after_s >= agent.grace_period_s:
        text = "must be more than node_agent.degraded_after_s"
        report.problem("node_agent.grace_period_s", text, "node_agent.degraded_after_s")
    if agent.times.sensitive_down_after_s < agent.grace_period_s:
        text = "must not be less than node_agent.grace_period_s"
        path = "node_agent.sensitive_grace_period_s"
        report.problem(path, text, "node_agent.grace_period_s")
    if agent.heartbeat_interval_s is not None:
        text = f"changes nothing: links are pinged every {PROBE_EVERY_S:g} s. Leave it out"
        report.problem("node_agent.heartbeat_interval_s", text)


def _sensitive(config: ServerConfig, report: ConfigReport) -> None:
    """A setting that promises more than is enforced prevents the start."""
    judge_sensitive(
        config.sensitive, config.objects, audit_bucket=config.audit.bucket, report=report
    )
    judge_sensitive_work(config, report)
    if config.storage.sensitive_bucket is not None:
        report.problem("storage.sensitive_bucket", "is not used: set sensitive.bucket")
