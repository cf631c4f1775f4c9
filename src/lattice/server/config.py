"""Loading the server's configuration, and what must hold between its keys.

The keys themselves are declared in `lattice.server.sections`. Rules of a section that has a module
of its own are there; those of `api`, `identity` and `gate` are in
`apirules`, `identityrules` and `gaterules`.

Each rule reports and goes on; none raises. A rule says which keys it rests on, so that one wrong
value brings one problem and no echo.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from lattice.base.config import Report, load, refused
from lattice.base.errors import ConfigurationError
from lattice.base.setting import Unread, setting_of
from lattice.domain.vcluster import Kind
from lattice.features.link.model import PING_EVERY_S
from lattice.server.apirules import judge_api
from lattice.server.attachsection import judge_attach
from lattice.server.configchecks import check_file, check_url
from lattice.server.diagsection import judge_diag
from lattice.server.gaterules import judge_gate
from lattice.server.identityrules import judge_identity
from lattice.server.objectsection import judge_objects
from lattice.server.sections import ServerConfig
from lattice.server.sharesection import judge_sharing
from lattice.server.telemetrysection import judge_telemetry

__all__ = ["Checked", "ServerConfig", "check_server_config", "load_server_config"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NO_SENSITIVE_WORK = (
    "sensitive work is not offered yet: administrators and shares would reach what its jobs write."
    " Leave it out"
)


@dataclass(frozen=True, slots=True)
class Checked:
    """What `--check-config` tells. `config` is None where there are problems."""

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
    """Read and judge, without raising."""
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


def judge(config: ServerConfig, report: Report) -> None:
    """Every rule, in the order of the sections."""
    judge_api(config.api, report)
    judge_identity(config, report)
    _slurm(config, report)
    judge_gate(config, report)
    _vclusters(config, report)
    _engines(config, report)
    judge_objects(config.objects, report)
    judge_sharing(config.sharing, report)
    judge_attach(config.attach, report)
    judge_telemetry(config.telemetry, report)
    judge_diag(config.diag, report)
    _nodes(config, report)
    _sensitive(config, report)
    for key in fields(ServerConfig):
        value, about = getattr(config, key.name), setting_of(key)
        if isinstance(value, Unread) and value.present and about is not None:
            report.warning(key.name, about.doc[:1].lower() + about.doc[1:])


def _slurm(config: ServerConfig, report: Report) -> None:
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


def _vclusters(config: ServerConfig, report: Report) -> None:
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


def _engines(config: ServerConfig, report: Report) -> None:
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


def _nodes(config: ServerConfig, report: Report) -> None:
    agent = config.node_agent
    if agent.degraded_after_s >= agent.grace_period_s:
        text = "must be more than node_agent.degraded_after_s"
        report.problem("node_agent.grace_period_s", text, "node_agent.degraded_after_s")
    if agent.heartbeat_interval_s is not None:
        text = f"changes nothing: links are pinged every {PING_EVERY_S:g} s. Leave it out"
        report.problem("node_agent.heartbeat_interval_s", text)


def _sensitive(config: ServerConfig, report: Report) -> None:
    """A setting that promises more than is enforced stops the start."""
    for index, each in enumerate(config.vclusters):
        if each.kind is Kind.SENSITIVE:
            report.problem(f"vclusters[{index}].kind", _NO_SENSITIVE_WORK)
    for path, value in (
        ("storage.sensitive_bucket", config.storage.sensitive_bucket),
        ("node_agent.sensitive_grace_period_s", config.node_agent.sensitive_grace_period_s),
    ):
        if value is not None:
            report.problem(path, _NO_SENSITIVE_WORK)
