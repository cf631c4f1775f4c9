"""The node's own identity on disk: one file, readable by this user only, replaced atomically.

Key and certificate are in one file, so that they always match. `Certificates` reads and makes them:
it needs a large library, which the agent itself does not load.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from lattice.base.errors import ConfigurationError
from lattice.domain.peer import PeerIdentity
from lattice.features.agents.model import Credentials

FILE = "identity.json"
MADE_ELSEWHERE = "bootstrap files"
"""The origin of files that an administrator provided."""
_LARGEST_BYTES = 1 << 20
_ROOM_BYTES = 64 * 1024
"""More than an identity needs."""


class IdentityRefused(ConfigurationError):
    """The data can't be this node's identity; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredIdentity:
    """A consistent identity. `origin` is the step of the cascade that gave it."""

    peer: PeerIdentity
    key: str = field(repr=False)
    certificate: str
    authorities: str
    grant_keys: tuple[bytes, ...] = ()
    replicas: tuple[str, ...] = ()
    origin: str


class Certificates(Protocol):
    """Reads and makes keys and certificates, all in PEM. Each method may take a second."""

    def new_request(self, node: str) -> tuple[str, str]:
        """A new key that never leaves this machine, and a signing request for its public key.

        Raises `Unavailable` if that is not possible now.
        """

    def read_identity(
        self, certificate: str, key: str, authorities: str, node: str, *, believed: str = ""
    ) -> PeerIdentity:
        """The node's identity, if all three fit. Raises `IdentityRefused` or `Unavailable`.

        With `believed`, one of these authorities must have signed the certificate.
        """

    def read_svid(
        self, certificate: str, key: str, authorities: str, node: str, path: str
    ) -> tuple[PeerIdentity, str]:
        """The node's identity in a SPIFFE certificate, and the cluster's authorities.

        `authorities` may have others too. `path` is that of a node's SPIFFE ID, with `{node}`.
        Raises `IdentityRefused` or `Unavailable`.
        """

    def check_statement(self, statement: bytes, signature: bytes, authorities: str) -> None:
        """Raise `IdentityRefused` if none of the authorities signed it, or `Unavailable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    key: str
    certificate: str
    authorities: str
    grant_keys: tuple[str, ...]
    replicas: tuple[str, ...]


class IdentityStore:
    """The file in the agent's state folder, and where its content comes from."""

    def __init__(self, folder: Path, node: str, certificates: Certificates) -> None:
        self.path = folder / FILE
        self._node = node
        self._certificates = certificates

    def new_request(self) -> tuple[str, str]:
        """A new key, and a signing request for it. Raises `Unavailable`."""
        return self._certificates.new_request(self._node)

    def held(
        self, credentials: Credentials, key: str, origin: str, *, believed: str = ""
    ) -> StoredIdentity:
        """The identity from a server's answer for our key. Raises `IdentityRefused`.

        With `believed`, one of these authorities must have signed the certificate. Then the server
        holds the cluster's key, not only a replica's certificate, and may set the grant keys.
        """
        try:
            keys = tuple(bytes.fromhex(each) for each in credentials.grant_keys)
        except ValueError:
            raise IdentityRefused("the server's keys can't be read") from None
        return StoredIdentity(
            peer=self._certificates.read_identity(
                credentials.certificate,
                key,
                credentials.authorities,
                self._node,
                believed=believed,
            ),
            key=key,
            certificate=credentials.certificate,
            authorities=credentials.authorities,
            grant_keys=keys,
            replicas=credentials.replicas,
            origin=origin,
        )

    def held_from_files(self, certificate: Path, key: Path, authorities: Path) -> StoredIdentity:
        """The identity from an administrator's files. Raises `IdentityRefused`."""
        texts = []
        for file in (certificate, key, authorities):
            try:
                texts.append(file.read_text("ascii"))
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "is no PEM"
                raise IdentityRefused(f"{file}: {why}") from None
        shown, secret, known = texts
        return StoredIdentity(
            peer=self._certificates.read_identity(shown, secret, known, self._node),
            key=secret,
            certificate=shown,
            authorities=known,
            origin=MADE_ELSEWHERE,
        )

    def stamp(self) -> tuple[int, int]:
        """Changes when the file changes."""
        try:
            facts = self.path.stat()
        except OSError:
            return (0, 0)
        return (facts.st_ino, facts.st_mtime_ns)

    def load(self) -> StoredIdentity | None:
        """The stored identity, or None. Raises `IdentityRefused` if it can't be trusted."""
        try:
            with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                raw = file.read(_LARGEST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise IdentityRefused(f"{self.path}: {error.strerror}") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise IdentityRefused(f"{self.path} is open to others (mode {stat.S_IMODE(mode):04o})")
        try:
            written = msgspec.json.decode(raw, type=_Written)
            keys = tuple(bytes.fromhex(each) for each in written.grant_keys)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            raise IdentityRefused(f"{self.path} can't be read") from None
        return StoredIdentity(
            peer=self._certificates.read_identity(
                written.certificate, written.key, written.authorities, self._node
            ),
            key=written.key,
            certificate=written.certificate,
            authorities=written.authorities,
            grant_keys=keys,
            replicas=written.replicas,
            origin="own certificate",
        )

    def check_folder(self) -> None:
        """Raise `IdentityRefused` if the file could not be written now."""
        probe = self.path.with_name(f".{FILE}.{os.getpid()}.probe")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(probe, flags, 0o600), "wb") as file:
                file.write(bytes(_ROOM_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise IdentityRefused(
                f"the state folder {self.path.parent} can't be written: {error.strerror}. "
                "No token was used",
            ) from None
        finally:
            with suppress(OSError):
                probe.unlink()

    def save(self, identity: StoredIdentity) -> None:
        """Replace the file, and return once it survives a power failure. Raises `IdentityRefused`.

        The folder is synced too: otherwise the old file, with its invalid certificate, could come
        back.
        """
        raw = msgspec.json.encode(
            _Written(
                key=identity.key,
                certificate=identity.certificate,
                authorities=identity.authorities,
                grant_keys=tuple(each.hex() for each in identity.grant_keys),
                replicas=identity.replicas,
            )
        )
        new = self.path.with_name(f".{FILE}.{os.getpid()}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise IdentityRefused(f"{self.path}: {error.strerror}") from None
