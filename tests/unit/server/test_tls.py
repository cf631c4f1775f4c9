"""What TLS files must be before they are put in force."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from lattice.base.errors import status_of
from lattice.server.tls import ServerTls, TlsFiles, TlsRefused, read_material


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> TlsFiles:
    leaf = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
    found = TlsFiles(tmp_path / "crt", tmp_path / "key", tmp_path / "ca")
    leaf.cert_chain_pems[0].write_to_path(str(found.certificate))
    leaf.private_key_pem.write_to_path(str(found.key))
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    return found


def _encrypted(key: bytes) -> bytes:
    loaded = load_pem_private_key(key, None)
    return loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))


SPOILS: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "no certificate": ("crt", lambda _: None, "No such file"),
    "no key": ("key", lambda _: None, "No such file"),
    "no authorities": ("ca", lambda _: None, "No such file"),
    "empty certificate": ("crt", lambda _: b"", "can't be used"),
    "empty key": ("key", lambda _: b"", "can't be used"),
    "empty authorities": ("ca", lambda _: b"", "authorities"),
    "half a certificate": ("crt", lambda data: data[: len(data) // 2], "can't be used"),
    "half a key": ("key", lambda data: data[: len(data) // 2], "can't be used"),
    "an encrypted key": ("key", _encrypted, "password"),
    "authorities in another form": ("ca", lambda _: b"\x30\x82\xff", "authorities"),
    "authorities that are text": ("ca", lambda _: b"hello", "authorities"),
    "the key of another": (
        "key",
        lambda _: trustme.CA().issue_cert("x").private_key_pem.bytes(),
        "does not belong|can't be used",
    ),
    "endless": ("crt", lambda data: data + b"\n" * (1 << 20), "too large"),
}


@pytest.mark.spec("OPS-6")
@pytest.mark.parametrize("name", SPOILS)
def test_files_that_can_not_be_used_are_named(name: str, files: TlsFiles) -> None:
    read_material(files)
    which, spoil, words = SPOILS[name]
    file = files.certificate.with_name(which)
    data = spoil(file.read_bytes())
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(TlsRefused, match=words) as refusal:
        ServerTls(files)
    assert status_of(refusal.value).exit == 78


NOW = datetime.now(UTC)


@pytest.mark.spec("OPS-6")
@pytest.mark.parametrize(
    ("begins", "ends", "words"),
    [
        (NOW - timedelta(days=9), NOW - timedelta(minutes=1), "the certificate expired on "),
        (NOW + timedelta(hours=1), NOW + timedelta(days=9), "the certificate is valid from "),
    ],
)
def test_a_certificate_out_of_its_time_never_replaces_a_good_one(
    files: TlsFiles, authority: trustme.CA, begins: datetime, ends: datetime, words: str
) -> None:
    served = ServerTls(files)
    good = served.http_context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    leaf = authority.issue_cert(
        "localhost", not_before=begins, not_after=ends, key_type=trustme.KeyType.ECDSA
    )
    leaf.cert_chain_pems[0].write_to_path(str(files.certificate))
    leaf.private_key_pem.write_to_path(str(files.key))
    assert not served.reload()
    again = served.http_context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    assert again.context is good.context
    with pytest.raises(TlsRefused, match=words) as refusal:
        ServerTls(files)
    assert refusal.value.hint


@pytest.mark.spec("OPS-6")
def test_a_client_certificate_needs_authorities(files: TlsFiles) -> None:
    with pytest.raises(TlsRefused, match="no authorities"):
        ServerTls(TlsFiles(files.certificate, files.key), rest_mtls=True)


def test_the_key_is_in_no_text_of_it(files: TlsFiles) -> None:
    material = read_material(files)
    assert "PRIVATE" not in repr(material)
    assert "PRIVATE" not in str(material)
