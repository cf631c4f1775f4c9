from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from lattice.adapters.objects.folder import FolderObjectStore
from lattice.adapters.objects.s3 import S3ObjectStore
from lattice.adapters.sitekeys.file import FileSiteKeys
from lattice.adapters.sitekeys.pkcs11 import Pkcs11SiteKeys
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.server.config.engine_sections import ObjectsSection, ObjectsUrl
from lattice.server.config.sections import ServerConfig
from lattice.server.config.sensitive_section import SensitiveSection
from lattice.server.engines import open_objects, open_sensitive_objects, open_site_keys
from tests.fakes.s3_server import SpokenS3


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://lattice", ObjectsUrl("lattice")),
        ("s3://lattice/", ObjectsUrl("lattice")),
        ("s3://lattice/a/b-1/", ObjectsUrl("lattice", "a/b-1")),
        ("file:///var/lib/objects", ObjectsUrl(folder=Path("/var/lib/objects"))),
    ],
)
def test_urls_of_stores(text: str, url: ObjectsUrl) -> None:
    assert ObjectsUrl.parse(text) == url
    assert ObjectsUrl.parse(str(url)) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lattice",
        "https://s3.example/lattice",
        "s3:lattice",
        "s3://",
        "s3://Lattice",
        "s3://-lattice",
        "s3://key:secret@lattice",
        "s3://lattice/a//b",
        "s3://lattice/../b",
        "s3://lattice/a b",
        "s3://lattice/" + "/".join(["x" * 30] * 4),
        "file://host/path",
        "file:relative",
        "file:///",
        "file:///a/../b",
        "file:///a\nb",
    ],
)
def test_what_is_no_store(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ObjectsUrl.parse(text)


def test_a_server_without_a_store_has_none() -> None:
    assert open_objects(ObjectsSection(), None) is None


async def test_a_single_server_has_a_folder(tmp_path: Path) -> None:
    store = open_objects(ObjectsSection(), tmp_path)
    assert isinstance(store, FolderObjectStore)
    await store.put("a", b"x")
    assert (tmp_path / "objects" / "a").read_bytes() == b"x"


def test_a_site_without_sensitive_work_has_neither_bucket_nor_keys() -> None:
    assert open_sensitive_objects(ServerConfig()) is None
    assert open_site_keys(SensitiveSection()) is None


def test_sensitive_work_has_its_bucket_in_the_same_store(tmp_path: Path) -> None:
    section = ObjectsSection(
        url=ObjectsUrl.parse("s3://lattice/cluster-a"),
        endpoint="http://127.0.0.1:8333",
        access_key_file=tmp_path / "a",
        secret_key_file=tmp_path / "s",
    )
    config = ServerConfig(objects=section, sensitive=SensitiveSection(bucket="vault"))
    store = open_sensitive_objects(config)
    assert isinstance(store, S3ObjectStore)


def test_the_site_keys_are_in_a_file_or_in_a_token(tmp_path: Path) -> None:
    file = open_site_keys(SensitiveSection(keys_file=tmp_path / "keys"))
    assert isinstance(file, FileSiteKeys)
    token = SensitiveSection(
        pkcs11_module=tmp_path / "module",
        pkcs11_token="site",
        pkcs11_pin_file=tmp_path / "pin",
        pkcs11_key="site-2026",
    )
    assert isinstance(open_site_keys(token), Pkcs11SiteKeys)


async def test_a_folder_that_is_named_goes_first(tmp_path: Path) -> None:
    section = ObjectsSection(url=ObjectsUrl.parse(f"file://{tmp_path}/named"))
    store = open_objects(section, tmp_path / "single")
    assert store is not None
    await store.put("a", b"x")
    assert (tmp_path / "named" / "a").read_bytes() == b"x"
    assert not (tmp_path / "single").exists()


async def test_s3_is_asked_where_the_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not where the environment of the process does."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    (tmp_path / "key").write_text("key\n")
    async with SpokenS3("lattice") as spoken:
        section = ObjectsSection(
            url=ObjectsUrl.parse("s3://lattice/cluster-a"),
            endpoint=f"http://{spoken.address}/",
            access_key_file=tmp_path / "key",
            secret_key_file=tmp_path / "key",
        )
        store = open_objects(section, tmp_path)
        assert isinstance(store, S3ObjectStore)
        assert await store.put_new("a/b", b"x")
        assert spoken.objects == {"cluster-a/a/b": b"x"}
        assert spoken.signed == {True}
        assert [each.key async for each in store.listing("")] == ["a/b"]


async def test_the_site_s_own_authority_is_believed_if_named(tmp_path: Path) -> None:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    (tmp_path / "key").write_text("key\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).configure_cert(context)
    async with SpokenS3("lattice", context) as spoken:
        section = ObjectsSection(
            url=ObjectsUrl("lattice"),
            endpoint=f"https://{spoken.address}",
            access_key_file=tmp_path / "key",
            secret_key_file=tmp_path / "key",
            ca=tmp_path / "ca",
        )
        store, unbelieving = (
            open_objects(section, None),
            open_objects(replace(section, ca=None), None),
        )
        assert store is not None
        assert unbelieving is not None
        await store.put("a", b"x")
        assert await store.read("a") == b"x"
        with pytest.raises(Unavailable):
            await unbelieving.read("a")


def test_authorities_that_are_none_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing")
    section = ObjectsSection(
        url=ObjectsUrl("lattice"),
        endpoint="https://s3.example",
        access_key_file=tmp_path / "ca",
        secret_key_file=tmp_path / "ca",
        ca=tmp_path / "ca",
    )
    with pytest.raises(ConfigurationError) as error:
        open_objects(section, None)
    assert error.value.hint
