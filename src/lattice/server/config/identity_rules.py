"""Rules of the section `identity`: its files, and the listener for agents.

Each rule reports its problems and returns; none raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lattice.adapters.pki.authority import AuthorityRefused, ClusterAuthority, read_bundle
from lattice.adapters.pki.files import believed_keys
from lattice.base.clock import SystemClock
from lattice.base.config import ConfigReport
from lattice.base.config_checks import SHORTEST_SECRET_BYTES, check_file
from lattice.base.signatures import SigningKey
from lattice.server.config.sections import ApiSection, IdentitySection, ServerConfig


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
    if api.agent_advertise is None:
        if api.agent_listen.is_wildcard:
            text = f"is needed: no node can dial {api.agent_listen}"
            report.problem("api.agent_advertise", text, "api.agent_listen")
    elif api.agent_advertise.is_wildcard or not api.agent_advertise.port:
        report.problem("api.agent_advertise", f"{api.agent_advertise} can't be dialled")


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
