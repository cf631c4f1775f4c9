"""Loading the server's configuration, and what must hold between its keys.

The keys themselves are declared in `lattice.server.sections`.

Each rule reports and goes on; none raises. A rule says which keys it rests on, so that one wrong
value brings one problem and no echo.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from lattice.adapters.pki.authority import AuthorityRefused, ClusterAuthority, read_bundle
from lattice.adapters.pki.files import believed_keys
from lattice.base.clock import SystemClock
from lattice.base.config import Report, load, refused
from lattice.base.errors import ConfigurationError
from lattice.base.setting import Unread, setting_of
from lattice.base.signing import SigningKey
from lattice.base.yamltree import short
from lattice.server.attachsection import AttachSection
from lattice.server.diagsection import DiagSection
from lattice.server.objectsection import ObjectsSection
from lattice.server.sections import (
    Address,
    ApiSection,
    AuthMode,
    IdentitySection,
    ServerConfig,
)
from lattice.server.sharesection import SharingSection
from lattice.server.telemetrysection import TelemetrySection
from lattice.server.tls import TlsFiles, TlsRefused, read_material

__all__ = ["Checked", "ServerConfig", "check_server_config", "load_server_config"]

SHORTEST_SECRET_BYTES = 32
_UNFIT = re.compile(r"[^!-~]|\\")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNIX_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\$?")


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
    _listeners(config.api, report)
    _tls(config.api, report)
    _sign_in(config.api, report)
    _people(config.api, report)
    _identity(config, report)
    _slurm(config, report)
    _gate(config, report)
    _vclusters(config, report)
    _engines(config, report)
    _objects(config.objects, report)
    _sharing(config.sharing, report)
    _attach(config.attach, report)
    _telemetry(config.telemetry, report)
    _diag(config.diag, report)
    _nodes(config, report)
    for key in fields(ServerConfig):
        value, about = getattr(config, key.name), setting_of(key)
        if isinstance(value, Unread) and value.present and about is not None:
            report.warning(key.name, about.doc[:1].lower() + about.doc[1:])


def _listeners(api: ApiSection, report: Report) -> None:
    if api.rest_listen == api.grpc_listen and api.rest_listen.port:
        report.problem("api.grpc_listen", "is the same as api.rest_listen", "api.rest_listen")
    if api.tls_cert is None:
        for path, address in _outside(api):
            if api.insecure:
                report.warning(path, f"{address} is served in plain text, as api.insecure allows")
            else:
                text = f"{address} is not loopback: set api.tls_cert and api.tls_key"
                report.problem(path, text, "api.tls_cert", "api.insecure")


def _outside(api: ApiSection) -> list[tuple[str, Address]]:
    both = (("api.rest_listen", api.rest_listen), ("api.grpc_listen", api.grpc_listen))
    return [(path, address) for path, address in both if not address.is_loopback]


def _tls(api: ApiSection, report: Report) -> None:
    for have, lack in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("tls_ca", "tls_cert")):
        if getattr(api, have) is not None and getattr(api, lack) is None:
            report.problem(f"api.{have}", f"needs api.{lack} too", f"api.{lack}")
    sound = _file("api.tls_cert", api.tls_cert, report)
    sound = _file("api.tls_key", api.tls_key, report, secret=True) and sound
    sound = _file("api.tls_ca", api.tls_ca, report) and sound
    if api.tls_ca is not None and not api.mtls:
        report.warning("api.mtls", "is empty: no listener asks for client certificates")
    if sound and api.tls_cert is not None and api.tls_key is not None:
        path = "api.tls_cert"
        try:
            read_material(TlsFiles(api.tls_cert, api.tls_key))
            path = "api.tls_ca"
            read_material(TlsFiles(api.tls_cert, api.tls_key, api.tls_ca))
        except TlsRefused as error:
            report.problem(path, str(error), "api.tls_key")


def _sign_in(api: ApiSection, report: Report) -> None:
    if api.oidc_issuer is not None:
        _provider(api, report)
    if api.oidc_hmac_secret is not None:
        size = len(api.oidc_hmac_secret.reveal().encode())
        if size < SHORTEST_SECRET_BYTES:
            what = "is empty" if size == 0 else f"has {size} bytes"
            text = f"{what}; at least {SHORTEST_SECRET_BYTES} are needed (openssl rand -hex 32)"
            report.problem("api.oidc_hmac_secret", text)
    if api.auth is AuthMode.HMAC:
        text = "HS256 is for development and break-glass: who knows the secret can be anyone"
        report.warning("api.oidc_hmac_secret", text)
    elif api.oidc_issuer is not None and api.oidc_hmac_secret is not None:
        report.warning("api.oidc_hmac_secret", "is not used: api.oidc_issuer goes first")
    elif api.auth is AuthMode.NONE:
        text = "is not set: nobody is asked to sign in, every caller is the server's own user"
        report.warning("api.oidc_issuer", text)
        for path, address in _outside(api):
            text = f"{address} is not loopback: set api.oidc_issuer, nobody is asked to sign in"
            report.problem(path, text, "api.oidc_issuer", "api.oidc_hmac_secret")


def _provider(api: ApiSection, report: Report) -> None:
    _url("api.oidc_issuer", api.oidc_issuer, report, outside=("https",))
    _url("api.oidc_jwks_uri", api.oidc_jwks_uri, report, outside=("https",), query=True)
    _authority("api.oidc_ca", api.oidc_ca, report)
    if not api.oidc_client_id:
        report.problem("api.oidc_client_id", "is needed with api.oidc_issuer")


def _people(api: ApiSection, report: Report) -> None:
    for name in ("user_claim", "tenant_claim"):
        if not getattr(api, name):
            report.problem(f"api.{name}", "is empty")
    for sub, user in api.service_accounts.items():
        path = f"api.service_accounts.{short(sub)}"
        if not sub or not _UNIX_USER.fullmatch(user):
            report.problem(path, f"{user[:60]!r} is no Unix user name")
        elif user == "root":
            report.problem(path, "no service may be root")


def _identity(config: ServerConfig, report: Report) -> None:
    api, identity = config.api, config.identity
    needed = ("ca_cert", "ca_key", "grant_key")
    given = [name for name in needed if getattr(identity, name) is not None]
    for lack in (name for name in needed if given and name not in given):
        keys = tuple(f"identity.{name}" for name in needed)
        report.problem(f"identity.{given[0]}", f"needs identity.{lack} too", *keys)
    sound = [
        _file(f"identity.{name}", getattr(identity, name), report, secret=name != "ca_cert")
        for name in needed
    ]
    sound.append(_file("identity.trust", identity.trust, report))
    if all(sound) and len(given) == len(needed):
        _identity_files(identity, report)
    for index, file in enumerate(identity.previous_grant_keys):
        path = f"identity.previous_grant_keys[{index}]"
        if _file(path, file, report):
            try:
                believed_keys([file])
            except ValueError as error:
                report.problem(path, str(error))
    if given:
        _agent_listener(api, report)
    if identity.development_token is not None:
        _development_token(config, report)


def _identity_files(identity: IdentitySection, report: Report) -> None:
    assert identity.ca_cert is not None
    assert identity.ca_key is not None
    assert identity.grant_key is not None
    try:
        authority = ClusterAuthority.load(identity.ca_cert, identity.ca_key, SystemClock())
    except AuthorityRefused as error:
        report.problem("identity.ca_cert", error.message, "identity.ca_key")
    else:
        if identity.trust is not None:
            try:
                read_bundle(identity.trust.read_bytes(), authority.cluster)
            except AuthorityRefused as error:
                report.problem("identity.trust", f"{identity.trust} {error.message}")
    try:
        SigningKey.load(identity.grant_key)
    except (ValueError, TypeError):
        report.problem("identity.grant_key", f"{identity.grant_key} holds no Ed25519 key")


def _agent_listener(api: ApiSection, report: Report) -> None:
    for name in ("rest_listen", "grpc_listen"):
        if api.agent_listen == getattr(api, name) and api.agent_listen.port:
            text = f"is the same as api.{name}: agents have a listener of their own"
            report.problem("api.agent_listen", text, f"api.{name}")
    if api.agent_advertise is None:
        if api.agent_listen.is_wildcard:
            text = f"is needed: no node can dial {api.agent_listen}"
            report.problem("api.agent_advertise", text, "api.agent_listen")
    elif api.agent_advertise.is_wildcard or not api.agent_advertise.port:
        report.problem("api.agent_advertise", f"{api.agent_advertise} can't be dialled")


def _development_token(config: ServerConfig, report: Report) -> None:
    path, token = "identity.development_token", config.identity.development_token
    assert token is not None
    if len(token.reveal().encode()) < SHORTEST_SECRET_BYTES:
        text = f"at least {SHORTEST_SECRET_BYTES} bytes are needed (openssl rand -hex 32)"
        report.problem(path, text)
    if not config.api.agent_listen.is_loopback:
        text = f"is for development: not while agents are served on {config.api.agent_listen}"
        report.problem(path, text, "api.agent_listen")
    report.warning(path, "is for development: who knows it can be any node")


def _slurm(config: ServerConfig, report: Report) -> None:
    slurm = config.slurm
    url = slurm.rest_url
    if url is None:
        report.problem("slurm.rest_url", "is missing: name slurmrestd, as unix:/path or a URL")
    elif url.startswith("unix:"):
        if not url.removeprefix("unix:").startswith("/"):
            report.problem("slurm.rest_url", "unix: is followed by an absolute path")
    else:
        _url("slurm.rest_url", url, report, outside=("http", "https"))
    if url is not None and slurm.user is None and slurm.token_file is not None:
        report.problem("slurm.user", "is needed with slurm.token_file", "slurm.token_file")
    _file("slurm.token_file", slurm.token_file, report, secret=True)
    _file("slurm.config_file", slurm.config_file, report)
    if slurm.bin_dir is not None and not slurm.bin_dir.is_dir():
        report.problem("slurm.bin_dir", f"{slurm.bin_dir} is no folder")


def _gate(config: ServerConfig, report: Report) -> None:
    gate = config.gate
    if gate.socket is None:
        if gate.grant_key is not None:
            report.problem("gate.grant_key", "needs gate.socket too", "gate.socket")
        return
    if not gate.socket.is_absolute():
        report.problem("gate.socket", "must be an absolute path")
    if gate.grant_key is None and config.identity.grant_key is None:
        text = "needs a key to sign with: set gate.grant_key or identity.grant_key"
        report.problem("gate.socket", text, "gate.grant_key", "identity.grant_key")
    if gate.grant_key is not None and _file("gate.grant_key", gate.grant_key, report, secret=True):
        try:
            SigningKey.load(gate.grant_key)
        except (ValueError, TypeError):
            report.problem("gate.grant_key", f"{gate.grant_key} holds no Ed25519 key")


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
        _url(f"quorum.endpoints[{index}]", endpoint, report, outside=("https",))
    for name in ("ca", "cert", "key"):
        _file(f"quorum.{name}", getattr(quorum, name), report, secret=name == "key")
    if (quorum.cert is None) != (quorum.key is None):
        have = "cert" if quorum.key is None else "key"
        text = "quorum.cert and quorum.key go together"
        report.problem(f"quorum.{have}", text, "quorum.cert", "quorum.key")
    for name in ("node_id", "data_dir", "peers"):
        if getattr(quorum, name) not in {None, ()}:
            text = "is not used: Raft is etcd's; name its members in quorum.endpoints"
            report.warning(f"quorum.{name}", text)
    _url("storage.s3_endpoint", config.storage.s3_endpoint, report, outside=plain)
    for name in ("s3_endpoint", "bucket", "region", "access_key", "secret_key"):
        if getattr(config.storage, name) is not None:
            report.warning(f"storage.{name}", "is not used: the object store is named in objects")


def _objects(objects: ObjectsSection, report: Report) -> None:
    url, plain = "objects.url", ("http", "https")
    of_s3 = ("endpoint", "region", "access_key_file", "secret_key_file", "ca")
    given = [name for name in of_s3 if getattr(objects, name) is not None]
    if objects.url is None or not objects.url.is_s3:
        text = "is for s3://" if objects.url else "needs objects.url too"
        for name in given:
            report.problem(f"objects.{name}", text, url)
        return
    outside = plain if objects.allow_http else ("https",)
    _url("objects.endpoint", objects.endpoint, report, outside=outside)
    if objects.endpoint is None and objects.region is None:
        report.problem(url, "needs objects.endpoint, or objects.region for AWS", "objects.endpoint")
    if objects.region is not None and not _NAME.fullmatch(objects.region):
        report.problem("objects.region", f"{objects.region[:60]!r} is no region")
    if objects.allow_http and objects.endpoint and objects.endpoint.startswith("http://"):
        report.warning("objects.allow_http", "what is stored can be read on its way")
    for name in ("access_key_file", "secret_key_file"):
        path, file = f"objects.{name}", getattr(objects, name)
        if file is None:
            report.problem(url, f"needs {path} too", path)
        elif _file(path, file, report, secret=True) and not file.read_bytes().strip():
            report.problem(path, f"{file} is empty")
    _authority("objects.ca", objects.ca, report)


def _telemetry(telemetry: TelemetrySection, report: Report) -> None:
    endpoint = "telemetry.tsdb_endpoint"
    _url(endpoint, telemetry.tsdb_endpoint, report, outside=("http", "https"))
    others = ("tsdb_username", "tsdb_password_file", "tsdb_bearer_file", "tsdb_ca")
    if telemetry.tsdb_endpoint is None:
        for name in (each for each in others if getattr(telemetry, each) is not None):
            report.problem(f"telemetry.{name}", f"needs {endpoint} too", endpoint)
    for have, lack in (others[:2], others[1::-1]):
        if getattr(telemetry, have) is not None and getattr(telemetry, lack) is None:
            text = f"needs telemetry.{lack} too"
            report.problem(f"telemetry.{have}", text, f"telemetry.{lack}")
    if telemetry.tsdb_password_file and telemetry.tsdb_bearer_file:
        text = "goes with no password: name one of the two"
        report.problem("telemetry.tsdb_bearer_file", text, "telemetry.tsdb_password_file")
    for name in ("tsdb_password_file", "tsdb_bearer_file"):
        _file(f"telemetry.{name}", getattr(telemetry, name), report, secret=True)
    secret = telemetry.tsdb_password_file or telemetry.tsdb_bearer_file
    if secret and (telemetry.tsdb_endpoint or "").startswith("http://"):
        report.warning(endpoint, "the store's secret can be read on its way: use https://")
    _authority("telemetry.tsdb_ca", telemetry.tsdb_ca, report)


def _diag(diag: DiagSection, report: Report) -> None:
    paths = Counter(each.path for each in diag.mounts)
    for index, mount in enumerate(diag.mounts):
        path = f"diag.mounts[{index}].path"
        if not mount.path.startswith("/"):
            report.problem(path, "must be an absolute path")
        elif paths[mount.path] > 1:
            report.problem(path, f"{mount.path} stands more than once")
    for index, link in enumerate(diag.links):
        if not 0 < link.gbit_s <= 1e6:
            report.problem(f"diag.links[{index}].gbit_s", "must be more than 0")


def _sharing(sharing: SharingSection, report: Report) -> None:
    if sharing.usual_days > sharing.longest_days:
        report.problem(
            "sharing.usual_days",
            "is longer than sharing.longest_days allows",
            "sharing.longest_days",
        )


def _attach(attach: AttachSection, report: Report) -> None:
    for index, origin in enumerate(attach.origins):
        path = f"attach.origins[{index}]"
        _url(path, origin, report, outside=("https",))
        if origin.count("/") != 2 or origin != origin.lower():
            report.problem(path, "must be scheme and host alone, as a browser writes them")


def _nodes(config: ServerConfig, report: Report) -> None:
    agent = config.node_agent
    rising = ("heartbeat_interval_s", "degraded_after_s", "grace_period_s")
    for low, high in pairwise(rising):
        if getattr(agent, low) >= getattr(agent, high):
            text = f"must be more than node_agent.{low}"
            report.problem(f"node_agent.{high}", text, f"node_agent.{low}")


def _file(path: str, file: Path | None, report: Report, *, secret: bool = False) -> bool:
    """True if the file is not named, or can be read."""
    if file is None:
        return True
    try:
        mode = file.stat().st_mode
    except OSError as error:
        report.problem(path, f"{file}: {error.strerror}")
        return False
    if not stat.S_ISREG(mode) or not os.access(file, os.R_OK):
        what = "can't be read by this user" if stat.S_ISREG(mode) else "is no regular file"
        report.problem(path, f"{file}: {what}")
        return False
    if secret and mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
        report.warning(path, f"{file} is open to others (mode {stat.S_IMODE(mode):04o})")
    return True


def _authority(path: str, file: Path | None, report: Report) -> None:
    if file is None or not _file(path, file, report):
        return
    try:
        ssl.create_default_context(cafile=file)
    except (ssl.SSLError, OSError):
        report.problem(path, f"{file} holds no certificates")


def _url(
    path: str, text: str | None, report: Report, *, outside: tuple[str, ...], query: bool = False
) -> None:
    """Plain `http` is always allowed to loopback; `outside` says what is elsewhere."""
    if text is None:
        return
    fault = _url_fault(text, outside, query=query)
    if fault:
        report.problem(path, fault)


def _url_fault(text: str, outside: tuple[str, ...], *, query: bool) -> str:
    try:
        url = urlsplit(text)
        sound = bool(url.hostname) and url.port != 0 and not _UNFIT.search(text)
    except ValueError:
        sound = False
    if not sound or url.scheme not in {"http", "https"}:
        return f"must be a URL that begins with {' or '.join(f'{each}://' for each in outside)}"
    if "@" in url.netloc:
        return "must not hold a user name or a password"
    if "#" in text or ("?" in text and not query):
        return "must hold neither query nor fragment"
    if url.scheme not in outside and not Address(url.hostname or "", 1).is_loopback:
        return "must be https:// (http:// is for loopback only)"
    return ""
