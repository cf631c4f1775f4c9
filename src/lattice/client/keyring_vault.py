"""Tokens in the system's keyring instead of files, if the `keyring` extra is installed.

A keyring belongs to one person's session on one host. So a lock of that host is enough to let only
one process renew at a time.
"""

# As in the other vault:
# ruff: noqa: PTH103, PTH120

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

import keyring
import msgspec
from keyring.errors import KeyringError, PasswordDeleteError

from lattice.base.errors import ConfigurationError
from lattice.client.credential import SAME_AS, Credential, replica_of_signin

_SERVICE = "lattice"


class KeyringClaim:
    """The refresh token, held under the lock."""

    def __init__(self, vault: KeyringVault, lock: int, token: str) -> None:
        self._vault = vault
        self._lock: int | None = lock
        self.token = token

    def held(self) -> bool:
        return self._lock is not None

    def give_back(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def finish(self, credential: Credential, refresh: str | None) -> None:
        self._vault.store(credential, refresh or self.token)
        self.give_back()

    def drop(self) -> None:
        stored = self._vault.read()
        if stored is not None:
            self._vault.store(stored, None)
        self.give_back()


class KeyringVault:
    """The tokens of one cluster, under the address of one of its replicas."""

    def __init__(self, folder: str, *servers: str) -> None:
        self._servers = servers
        self._home = servers[0]
        self._lock_path = f"{folder}/.keyring.lock"

    def read(self) -> Credential | None:
        return Credential.of(self._document())

    def save(self, credential: Credential, refresh: str | None) -> None:
        self._document()
        self.store(credential, refresh)
        for server in self._servers:
            if server != self._home:
                self._put(server, {SAME_AS: self._home})

    def delete(self) -> None:
        self._document()
        try:
            for server in dict.fromkeys((*self._servers, self._home)):
                with suppress(PasswordDeleteError):
                    keyring.delete_password(_SERVICE, server)
        except KeyringError as error:
            raise _refused(error) from None

    def renewable(self) -> bool:
        return "refresh_token" in self._document()

    def claim(self) -> KeyringClaim | None:
        os.makedirs(os.path.dirname(self._lock_path), mode=0o700, exist_ok=True)
        lock = os.open(self._lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        token = self._document().get("refresh_token")
        if not isinstance(token, str):
            os.close(lock)
            return None
        return KeyringClaim(self, lock, token)

    def store(self, credential: Credential, refresh: str | None) -> None:
        """Replace the stored tokens."""
        document = credential.document()
        if refresh is not None:
            document["refresh_token"] = refresh
        self._put(self._home, document)

    def _put(self, server: str, document: dict[str, object]) -> None:
        try:
            keyring.set_password(_SERVICE, server, msgspec.json.encode(document).decode())
        except KeyringError as error:
            raise _refused(error) from None

    def _document(self) -> dict[str, object]:
        """The stored document, under whichever replica it is."""
        found: dict[str, dict[str, object]] = {}

        def document_of(server: str) -> dict[str, object]:
            document = found[server] = self._read(server)
            return document

        self._home = replica_of_signin(self._servers, document_of)
        return found[self._home]

    def _read(self, server: str) -> dict[str, object]:
        try:
            text = keyring.get_password(_SERVICE, server)
        except KeyringError as error:
            raise _refused(error) from None
        try:
            return msgspec.json.decode(text or "{}", type=dict[str, object])
        except msgspec.DecodeError:
            return {}


def _refused(error: KeyringError) -> ConfigurationError:
    return ConfigurationError(
        f"The system's keyring does not work here: {error}",
        hint="Set `credentials: file` in the configuration to keep tokens in a file.",
    )
