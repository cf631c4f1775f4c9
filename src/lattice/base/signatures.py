"""Ed25519 signatures with keys from files, between processes.

The name of a key is the first 16 hex digits of the SHA-256 of its public half. A signature names
its key, because two keys are valid during a key rotation.

Most importers only verify, which needs no `cryptography`. It is imported where keys sign.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lattice.base.ed25519 import public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class BadSignature(Exception):
    """The text is not signed by a known key."""


def key_name(public: bytes) -> str:
    """The first 16 hex digits of the SHA-256."""
    return hashlib.sha256(public).hexdigest()[:16]


class SigningKey:
    """The private half. Never printed, never sent."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()
        self.name = key_name(self.public)

    @classmethod
    def generate(cls) -> SigningKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - see above
            Ed25519PrivateKey,
        )

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """From a PEM file. Raises `ValueError` for anything but an unencrypted Ed25519 key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - see above
            Ed25519PrivateKey,
        )
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - see above
            load_pem_private_key,
        )

        key = load_pem_private_key(path.read_bytes(), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path} holds no Ed25519 key")  # noqa: TRY004 - it is the content
        return cls(key)

    def save(self, path: Path) -> None:
        """Write a PEM file that only this user can read. Raises `FileExistsError` if it exists."""
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - see above

        pem = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


class KeyRing:
    """The trusted public keys: one, or two during a key rotation."""

    def __init__(self, public_keys: Iterable[bytes] = ()) -> None:
        """Raises `ValueError` for a key that can't be trusted."""
        self._keys = {key_name(raw): public_key(raw) for raw in public_keys}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._keys)

    def verify(self, key: str, message: bytes, signature: bytes) -> None:
        """Return if the named key signed this; otherwise raise `BadSignature`."""
        known = self._keys.get(key)
        if known is None:
            raise BadSignature("signed by a key that is not known here")
        if not known.verify(signature, message):
            raise BadSignature("the signature does not fit")
