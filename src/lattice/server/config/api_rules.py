"""Rules of the sections `api` and `identity`: listeners, TLS, sign-in, and certificates of nodes.

Each rule reports its problems and returns; none raises.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lattice.adapters.pki.authority import AuthorityRefused, ClusterAuthority, read_bundle
from lattice.adapters.pki.files import believed_keys
from lattice.adapters.spiffe.bundle import BundleRefused, read_bundle_file
from lattice.base.address import Address
from lattice.base.clock import SystemClock
from lattice.base.config import ConfigReport
from lattice.base.config_checks import (
    SHORTEST_SECRET_BYTES,
    check_authority,
    check_file,
    check_url,
    is_plain_outside,
)
from lattice.base.metrics_endpoint import metrics_address
from lattice.base.signatures import SigningKey
from lattice.base.yamltree import short
from lattice.domain.spiffe import BadTemplate, NodePath, checked_domain, workload_address
from lattice.server.config.api_section import ApiSection, AuthMode
from lattice.server.config.sections import IdentitySection, ServerConfig
from lattice.server.tls import TlsFiles, TlsRefused, read_material

_UNIX_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\$?")


def judge_api(api: ApiSection, report: ConfigReport) -> None:
    _listeners(api, report)
    _tls(api, report)
    _sign_in(api, report)
    _people(api, report)
    _metrics(api, report)


def _listeners(api: ApiSection, report: ConfigReport) -> None:
    if api.rest_listen == api.grpc_listen and api.rest_listen.port:
        report.problem("api.grpc_listen", "is the same as api.rest_listen", "api.rest_listen")
    if api.tls_cert is None:
        for path, address in _outside(api):
            if api.insecure:
                report.warning(path, f"{address} is served in plain text, as api.insecure allows")
            else:
                text = f"{address} is not loopback: set api.tls_cert and api.tls_key"
                report.problem(path, text, "api.tls_cert", "api.insecure")


def _metrics(api: ApiSection, report: ConfigReport) -> None:
    path = "api.metrics_listen"
    try:
        address = metrics_address(api.metrics_listen)
    except ValueError:
        text = f"must be unix:/path or IP:PORT, not {short(api.metrics_listen)!r}"
        report.problem(path, text)
        return
    if address is None:
        return
    if not address.is_local:
        text = f"{api.metrics_listen} is not loopback: everybody who reaches it can read /metrics"
        report.warning(path, text)
    listeners = (("api.rest_listen", api.rest_listen), ("api.grpc_listen", api.grpc_listen))
    for other, listener in listeners:
        if Address(address.host, address.port) == listener:
            report.problem(path, f"is the same as {other}", other)


def _outside(api: ApiSection) -> list[tuple[str, Address]]:
    both = (("api.rest_listen", api.rest_listen), ("api.grpc_listen", api.grpc_listen))
    return [(path, address) for path, address in both if not address.is_loopback]


def _tls(api: ApiSection, report: ConfigReport) -> None:
    for have, lack in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("tls_ca", "tls_cert")):
        if getattr(api, have) is not None and getattr(api, lack) is None:
            report.problem(f"api.{have}", f"needs api.{lack} too", f"api.{lack}")
    sound = check_file("api.tls_cert", api.tls_cert, report)
    sound = check_file("api.tls_key", api.tls_key, report, secret=True) and sound
    sound = check_file("api.tls_ca", api.tls_ca, report) and sound
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


def _sign_in(api: ApiSection, report: ConfigReport) -> None:
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


def judge_munge(config: ServerConfig, report: ConfigReport) -> None:
    """Tokens of the server's own are signed with its key of grants."""
    api = config.api
    if api.munge_socket is not None and not api.munge:
        report.warning("api.munge_socket", "is not used: api.munge is not set")
    if api.administrators and not api.issues_tokens:
        text = "is not used: neither api.munge nor api.slurm_tokens is set"
        report.warning("api.administrators", text)
    for user in api.administrators:
        if not _UNIX_USER.fullmatch(user):
            report.problem("api.administrators", f"{user[:60]!r} is no Unix user name")


def judge_slurm_tokens(config: ServerConfig, report: ConfigReport) -> None:
    """A slurmrestd must judge people's tokens, and nobody may read them on the way to it."""
    api, path = config.api, "api.slurm_tokens_url"
    if not api.slurm_tokens:
        if api.slurm_tokens_url is not None:
            report.warning(path, "is not used: api.slurm_tokens is not set")
        return
    if api.slurm_tokens_url is None:
        if config.slurm.token_file is None:
            text = "is needed: slurm.rest_url answers without a token, so it judges none"
            report.problem(path, text, "api.slurm_tokens")
        elif is_plain_outside(config.slurm.rest_url):
            text = "is needed: people's tokens would go to slurm.rest_url in plain text"
            report.problem(path, text, "slurm.rest_url")
    elif api.slurm_tokens_url.startswith("unix:"):
        if not api.slurm_tokens_url.removeprefix("unix:").startswith("/"):
            report.problem(path, "unix: is followed by an absolute path")
    else:
        check_url(path, api.slurm_tokens_url, report, outside=("https",))


def _provider(api: ApiSection, report: ConfigReport) -> None:
    check_url("api.oidc_issuer", api.oidc_issuer, report, outside=("https",))
    check_url("api.oidc_jwks_uri", api.oidc_jwks_uri, report, outside=("https",), query=True)
    check_authority("api.oidc_ca", api.oidc_ca, report)
    if not api.oidc_client_id:
        report.problem("api.oidc_client_id", "is needed with api.oidc_issuer")
    elif api.audience == api.oidc_client_id:
        text = "is the client's own id, which ID tokens have too: give the API a name of its own"
        report.warning("api.oidc_audience", text)
    if api.oidc_id_claims:
        text = "lets ID tokens pass for access tokens: only for Dex, which makes them alike"
        report.warning("api.oidc_id_claims", text)


def _people(api: ApiSection, report: ConfigReport) -> None:
    for name in ("user_claim", "tenant_claim"):
        if not getattr(api, name):
            report.problem(f"api.{name}", "is empty")
    for sub, user in api.service_accounts.items():
        path = f"api.service_accounts.{short(sub)}"
        if not sub or not _UNIX_USER.fullmatch(user):
            report.problem(path, f"{user[:60]!r} is no Unix user name")
        elif user == "root":
            report.problem(path, "no service may be root")


def judge_identity(config: ServerConfig, report: ConfigReport) -> None:
    """Check every rule of the section, and of the listener for agents."""
    api, identity = config.api, config.identity
    needed = ("ca_cert", "ca_key", "grant_key")
    given = [name for name in needed if getattr(identity, name) is not None]
    for lack in (name for name in needed if given and name not in given):
        keys = tuple(f"identity.{name}" for name in needed)
        report.problem(f"identity.{given[0]}", f"needs identity.{lack} too", *keys)
    sound = [
        check_file(f"identity.{name}", getattr(identity, name), report, secret=name != "ca_cert")
        for name in needed
    ]
    sound.append(check_file("identity.trust", identity.trust, report))
    if all(sound) and len(given) == len(needed):
        _identity_files(identity, report)
    _public_keys("identity.previous_grant_keys", identity.previous_grant_keys, report)
    _public_keys("logs.seal_keys", config.logs.seal_keys, report)
    if given:
        _agent_listener(api, report)
    if identity.development_token is not None:
        _development_token(config, report)


def judge_spiffe(config: ServerConfig, report: ConfigReport) -> None:
    """SVIDs name nodes only with a trust domain, and authorities from one source."""
    spiffe = config.api.spiffe
    if not spiffe.trust_domain:
        for name in ("bundle", "socket"):
            if getattr(spiffe, name):
                text = "needs api.spiffe.trust_domain too"
                report.problem(f"api.spiffe.{name}", text, "api.spiffe.trust_domain")
        return
    if not config.identity.is_set:
        report.problem("api.spiffe.trust_domain", "needs identity.ca_cert too", "identity.ca_cert")
    _fits("trust_domain", checked_domain, spiffe.trust_domain, report)
    _fits("path", NodePath, spiffe.path, report)
    if (spiffe.bundle is None) == (not spiffe.socket):
        text = "needs api.spiffe.bundle or api.spiffe.socket, one of them"
        report.problem("api.spiffe.trust_domain", text, "api.spiffe.bundle", "api.spiffe.socket")
    if spiffe.bundle is not None:
        try:
            read_bundle_file(spiffe.bundle)
        except BundleRefused as error:
            report.problem("api.spiffe.bundle", error.message)
    if spiffe.socket and _fits("socket", workload_address, spiffe.socket, report):
        _workload_folder(workload_address(spiffe.socket), report)


def _fits(name: str, check: Callable[[str], object], text: str, report: ConfigReport) -> bool:
    try:
        check(text)
    except BadTemplate as fault:
        report.problem(f"api.spiffe.{name}", str(fault))
        return False
    return True


def _workload_folder(address: str, report: ConfigReport) -> None:
    scheme, _, path = address.partition(":")
    for folder in Path(path).parents if scheme == "unix" else ():
        with suppress(OSError):
            if folder.stat().st_mode & stat.S_IWOTH:
                text = (
                    f"{folder} is open to everybody: any user could put a socket of his own there"
                )
                report.warning("api.spiffe.socket", text)


def _public_keys(name: str, files: Sequence[Path], report: ConfigReport) -> None:
    for index, file in enumerate(files):
        path = f"{name}[{index}]"
        if check_file(path, file, report):
            try:
                believed_keys([file])
            except ValueError as error:
                report.problem(path, str(error))


def _identity_files(identity: IdentitySection, report: ConfigReport) -> None:
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


def _agent_listener(api: ApiSection, report: ConfigReport) -> None:
    for name in ("rest_listen", "grpc_listen"):
        if api.agent_listen == getattr(api, name) and api.agent_listen.port:
            text = f"is the same as api.{name}: agents have a listener of their own"
            report.problem("api.agent_listen", text, f"api.{name}")
    for name in ("rest_listen", "grpc_listen", "agent_listen"):
        if api.lanes and api.lane_listen == getattr(api, name) and api.lane_listen.port:
            text = f"is the same as api.{name}: lanes have a listener of their own"
            report.problem("api.lane_listen", text, f"api.{name}")
    if api.lane_advertise is not None:
        _advertised("api.lane_advertise", api.lane_advertise, api.lane_listen, report)
    if api.agent_advertise is None:
        if api.agent_listen.is_wildcard:
            text = f"is needed: no node can dial {api.agent_listen}"
            report.problem("api.agent_advertise", text, "api.agent_listen")
    else:
        _advertised("api.agent_advertise", api.agent_advertise, api.agent_listen, report)


def _advertised(path: str, address: Address, listen: Address, report: ConfigReport) -> None:
    if address.is_wildcard or not address.port:
        report.problem(path, f"{address} can't be dialled")
    elif address.is_loopback and not listen.is_loopback:
        text = f"{address} is this machine alone: name the address that nodes reach it by"
        report.problem(path, text)


def _development_token(config: ServerConfig, report: ConfigReport) -> None:
    path, token = "identity.development_token", config.identity.development_token
    assert token is not None
    if len(token.reveal().encode()) < SHORTEST_SECRET_BYTES:
        text = f"at least {SHORTEST_SECRET_BYTES} bytes are needed (openssl rand -hex 32)"
        report.problem(path, text)
    if not config.api.agent_listen.is_loopback:
        text = f"is for development: not while agents are served on {config.api.agent_listen}"
        report.problem(path, text, "api.agent_listen")
    report.warning(path, "is for development: who knows it can be any node")
