"""The files of a cluster's identity: created once, together, readable by this user only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lattice.adapters.pki.authority import ClusterAuthority, new_cluster_id
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError
from lattice.base.signatures import SigningKey


@dataclass(frozen=True, slots=True)
class IdentityPaths:
    """The paths of the authority and of the grant key."""

    ca_cert: Path
    ca_key: Path
    grant_key: Path

    def all(self) -> tuple[Path, Path, Path]:
        return self.ca_cert, self.ca_key, self.grant_key


def create_identity(
    paths: IdentityPaths, clock: Clock, *, name: str = "", cluster: str = ""
) -> bool:
    """Create the files if none exists; False if all exist. Raises `ConfigurationError`.

    If only some exist, it does not guess: a new authority with an old key would lock out every
    node. `name` becomes part of the new cluster's id. `cluster` is the whole id, for the successor
    of another authority.
    """
    missing = [each for each in paths.all() if not each.exists()]
    if not missing:
        return False
    if len(missing) < len(paths.all()):
        named = ", ".join(str(each) for each in missing)
        raise ConfigurationError(
            f"A part of the cluster's identity is missing: {named}.",
            hint="Restore it from your backup, or remove the rest too to begin a new identity: "
            "then every node enrols again.",
        )
    authority = ClusterAuthority.create(cluster or new_cluster_id(name), clock)
    try:
        for folder in {each.parent for each in paths.all()}:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_new(paths.ca_key, authority.key_pem())
        SigningKey.generate().save(paths.grant_key)
        _write_new(paths.ca_cert, authority.bundle)
    except OSError as error:
        raise ConfigurationError(
            f"The cluster's identity can't be written: {error.filename}: {error.strerror}.",
            hint="Give this user the folder, then remove what was begun and start again.",
        ) from None
    return True


def believed_keys(files: Iterable[Path]) -> tuple[bytes, ...]:
    """Public grant keys, from PEM files of a public or a private key. Raises `ValueError`."""
    return tuple(_public_key(each) for each in files)


def _public_key(file: Path) -> bytes:
    pem = file.read_bytes()
    try:
        if b"PRIVATE KEY" in pem:
            key = serialization.load_pem_private_key(pem, password=None)
            if isinstance(key, Ed25519PrivateKey):
                return key.public_key().public_bytes_raw()
        else:
            public = serialization.load_pem_public_key(pem)
            if isinstance(public, Ed25519PublicKey):
                return public.public_bytes_raw()
    except (ValueError, TypeError):
        pass
    raise ValueError(f"{file} holds no Ed25519 key")


def _write_new(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
