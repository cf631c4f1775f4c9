"""The files of an identity: made together or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from lattice.adapters.pki.authority import ClusterAuthority
from lattice.adapters.pki.files import IdentityPaths, believed_keys, create_identity
from lattice.base.errors import ConfigurationError
from lattice.base.signatures import SigningKey
from tests.fakes.certificates import key_pem
from tests.fakes.manual_clock import ManualClock


@pytest.fixture
def paths(tmp_path: Path) -> IdentityPaths:
    folder = tmp_path / "made" / "here"
    return IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")


@pytest.mark.spec("AUTH-9")
def test_none_there_makes_all_for_this_user_alone(paths: IdentityPaths) -> None:
    assert create_identity(paths, ManualClock(), name="Alpha")
    assert {each.stat().st_mode & 0o777 for each in paths.all()} == {0o600}
    assert paths.ca_key.parent.stat().st_mode & 0o777 == 0o700
    authority = ClusterAuthority.load(paths.ca_cert, paths.ca_key, ManualClock())
    assert authority.cluster.startswith("alpha-")
    assert SigningKey.load(paths.grant_key)


def test_all_there_stay_as_they_are(paths: IdentityPaths) -> None:
    create_identity(paths, ManualClock())
    before = [each.read_bytes() for each in paths.all()]
    assert not create_identity(paths, ManualClock())
    assert [each.read_bytes() for each in paths.all()] == before


@pytest.mark.parametrize("lost", range(3))
def test_some_there_is_refused_and_changes_nothing(paths: IdentityPaths, lost: int) -> None:
    create_identity(paths, ManualClock())
    paths.all()[lost].unlink()
    with pytest.raises(ConfigurationError, match=f"missing: {paths.all()[lost]}"):
        create_identity(paths, ManualClock())
    assert not paths.all()[lost].exists()


def test_a_successor_speaks_for_the_same_cluster(paths: IdentityPaths) -> None:
    create_identity(paths, ManualClock(), cluster="alpha-1")
    assert ClusterAuthority.load(paths.ca_cert, paths.ca_key, ManualClock()).cluster == "alpha-1"


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "below"
    with pytest.raises(ConfigurationError, match="can't be written"):
        create_identity(IdentityPaths(folder / "a", folder / "b", folder / "c"), ManualClock())


def test_either_half_of_a_key_gives_the_public_one(tmp_path: Path) -> None:
    key = SigningKey.generate()
    key.save(tmp_path / "private")
    loaded = serialization.load_pem_private_key((tmp_path / "private").read_bytes(), None)
    (tmp_path / "public").write_bytes(
        loaded.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    assert believed_keys([tmp_path / "private", tmp_path / "public"]) == (key.public,) * 2
    (tmp_path / "curve").write_bytes(key_pem(generate_private_key(SECP256R1())))
    for text in (b"", b"nothing", (tmp_path / "curve").read_bytes()):
        (tmp_path / "other").write_bytes(text)
        with pytest.raises(ValueError, match="no Ed25519 key"):
            believed_keys([tmp_path / "other"])
