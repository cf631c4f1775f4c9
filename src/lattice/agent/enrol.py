"""`lattice-agent --enrol`: gets the node's first certificate, as root, before the agent runs.

The helper believes the keys in a file that only root can write. They come with the certificate,
over the connection that the join key's authority has signed. With SPIRE, the cluster's authority
signs them. So nobody copies a file by hand, and
the agent, which talks to the network, can't change them: they are never read from its folder.
"""

from __future__ import annotations

import asyncio
import base64
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lattice.agent.certificate_process import CertificateProcess
from lattice.agent.config import AgentSettings
from lattice.agent.identity_cascade import Cascade
from lattice.agent.identity_issuer import GrpcIssuer
from lattice.agent.identity_spire import SPIRE, spire_identity
from lattice.agent.identity_store import IdentityStore
from lattice.base.clock import SystemClock
from lattice.base.errors import ConfigurationError


def enrol(settings: AgentSettings, grant_keys: Path | None, owner: str) -> None:
    """Store an identity for `owner`, and the keys of grants for the helper.

    Where both are there and the certificate is valid, nothing changes. Raises `ConfigurationError`
    and `Unavailable`.
    """
    config, clock = settings.config, SystemClock()
    certificates = CertificateProcess()
    store = IdentityStore(config.state_dir, settings.node, certificates)
    issuer = GrpcIssuer(
        settings.enrol_at, config.bootstrap.ca, settings.join.ca if settings.join else ""
    )
    has_keys = grant_keys is None or grant_keys.exists()
    with _acting_as(owner, config.state_dir):
        spire = spire_identity(settings, certificates, issuer, clock)
        cascade = Cascade(settings, store, issuer, clock, spire)
        found = asyncio.run(cascade.obtain(from_servers_alone=not has_keys))
    if grant_keys is not None and (found.origin == SPIRE or found.origin.endswith("token")):
        _write_keys(grant_keys, found.grant_keys)


def _write_keys(file: Path, keys: tuple[bytes, ...]) -> None:
    lines = (base64.b64encode(key).decode() + "\n" for key in keys)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new.write_text("".join(lines))
        new.chmod(0o644)
        new.replace(file)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None


@contextmanager
def _acting_as(owner: str, folder: Path) -> Iterator[None]:
    """Write files as this user, in a folder of its own; as oneself if there is no name."""
    if not owner:
        yield
        return
    try:
        account = pwd.getpwnam(owner)
    except KeyError:
        raise ConfigurationError(f"There is no user {owner} on this machine.") from None
    try:
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)
            os.chown(folder, account.pw_uid, account.pw_gid)
        # The real user stays root, so that no process of that user can trace this one.
        os.setegid(account.pw_gid)
        os.seteuid(account.pw_uid)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: {error.strerror}.", hint="Run it as root, or without --owner."
        ) from None
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        os.setegid(os.getgid())
