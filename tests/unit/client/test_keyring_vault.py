from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

keyring = pytest.importorskip("keyring", reason="the keyring extra is not installed")

from keyring.backend import KeyringBackend  # noqa: E402
from keyring.errors import KeyringError, PasswordDeleteError  # noqa: E402

from lattice.base.errors import ConfigurationError  # noqa: E402
from lattice.client.credential import Credential  # noqa: E402
from lattice.client.keyring_vault import KeyringVault  # noqa: E402
from lattice.client.settings import Settings  # noqa: E402
from lattice.client.tokens import open_vault  # noqa: E402


class Memory(KeyringBackend):
    priority = 1

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.broken = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.broken:
            raise KeyringError("locked")
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if (service, username) not in self.kept:
            raise PasswordDeleteError("none")
        del self.kept[service, username]


@pytest.fixture
def backend() -> Iterator[Memory]:
    before = keyring.get_keyring()
    made = Memory()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


def credential(token: str) -> Credential:
    return Credential(token, expires_at=5.0, issuer="https://idp", client_id="lattice")


@pytest.mark.spec("AUTH-1")
def test_keeps_and_forgets(backend: Memory, tmp_path: Path) -> None:
    settings = Settings(("https://a",), credentials="keyring", folder=str(tmp_path))
    vault = open_vault(settings)
    assert isinstance(vault, KeyringVault)
    assert vault.read() is None
    vault.save(credential("a1"), "r1")
    kept = vault.read()
    assert kept is not None
    assert (kept.access_token, kept.expires_at) == ("a1", 5.0)
    assert list(backend.kept) == [("lattice", "https://a")]
    vault.delete()
    vault.delete()
    assert vault.read() is None
    assert not list(tmp_path.glob("*.json")), "nothing of it is on disk"


def test_refresh_token_is_held_by_one(backend: Memory, tmp_path: Path) -> None:
    vault, other = (KeyringVault(str(tmp_path), "https://a") for _ in range(2))
    assert vault.claim() is None
    vault.save(credential("a1"), "r1")
    claim = vault.claim()
    assert claim is not None
    assert claim.token == "r1"
    assert other.claim() is None
    claim.finish(credential("a2"), "r2")
    assert not claim.held()
    second = other.claim()
    assert second is not None
    assert second.token == "r2"
    second.drop()
    assert not vault.renewable()
    assert vault.read() is not None


def test_keyring_that_does_not_work(backend: Memory, tmp_path: Path) -> None:
    backend.broken = True
    with pytest.raises(ConfigurationError, match="keyring") as caught:
        KeyringVault(str(tmp_path), "https://a").read()
    assert "credentials: file" in (caught.value.hint or "")


@pytest.mark.spec("AUTH-1", "OPS-1")
def test_a_sign_in_is_the_clusters_whichever_replica_is_named_first(
    backend: Memory, tmp_path: Path
) -> None:
    KeyringVault(str(tmp_path), "https://a", "https://b").save(credential("a1"), "r1")
    for named in (("https://b", "https://a"), ("https://b",), ("https://c", "https://b")):
        vault = KeyringVault(str(tmp_path), *named)
        assert vault.read().access_token == "a1"  # type: ignore[union-attr]
        assert vault.renewable()
    assert KeyringVault(str(tmp_path), "https://c").read() is None
    KeyringVault(str(tmp_path), "https://b", "https://a").delete()
    assert backend.kept == {}
