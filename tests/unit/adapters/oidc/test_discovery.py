"""Where the server may be sent by what a provider answers: nowhere."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx2
import pytest

from lattice.adapters.oidc.discovery import DiscoveredProvider, ProviderFault
from lattice.adapters.oidc.endpoints import read_object
from tests.fakes.identity_provider import DISCOVERY, KEYS, IdentityProvider, running_provider
from tests.nesting import DEEP


@pytest.fixture
def elsewhere() -> Iterator[IdentityProvider]:
    with running_provider() as provider:
        yield provider


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize("path", [DISCOVERY, KEYS])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(
    path: str,
    status: int,
    client: httpx2.AsyncClient,
    idp: IdentityProvider,
    elsewhere: IdentityProvider,
) -> None:
    idp.answers[path] = (status, {"Location": elsewhere.issuer + path}, b"")
    with pytest.raises(ProviderFault, match=str(status)):
        await DiscoveredProvider(client, idp.issuer).key_set()
    assert not elsewhere.asked


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize(
    "named",
    [
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "ftp://127.0.0.1/keys",
        "/keys",
        "",
        None,
        7,
        ["http://127.0.0.1/keys"],
        "{issuer}@{elsewhere}/keys",
        "http://user:pw@127.0.0.1:{port}/keys",
        "https://127.0.0.1:{port}/keys",
        "http://127.0.0.1.example:{port}/keys",
        "http://localhost:{port}/keys",
        "http://127.0.0.1:1/keys",
        "http://127.0.0.1:{port}\\@169.254.169.254/keys",
        "http://[::1]:{port}/keys",
        "http://127.0.0.1:99999/keys",
        "http://[/keys",
    ],
    ids=str,
)
async def test_keys_come_from_the_issuers_own_origin(
    named: object,
    client: httpx2.AsyncClient,
    idp: IdentityProvider,
    elsewhere: IdentityProvider,
) -> None:
    if isinstance(named, str):
        named = (
            named.replace("{port}", str(idp.port))
            .replace("{issuer}", idp.issuer)
            .replace("{elsewhere}", f"127.0.0.1:{elsewhere.port}")
        )
    idp.document["jwks_uri"] = named
    with pytest.raises(ProviderFault, match="origin"):
        await DiscoveredProvider(client, idp.issuer).key_set()
    assert not elsewhere.asked
    assert idp.asked == {DISCOVERY: 1}


@pytest.mark.spec("AUTH-2")
async def test_an_address_the_administrator_named_is_asked_and_no_other(
    client: httpx2.AsyncClient, idp: IdentityProvider, elsewhere: IdentityProvider
) -> None:
    elsewhere.signers = idp.signers
    provider = DiscoveredProvider(client, idp.issuer, jwks_uri=elsewhere.issuer + KEYS)
    assert json.loads(await provider.key_set())["keys"][0]["kid"] == "rsa-1"
    assert elsewhere.asked == {KEYS: 1}
    assert not idp.asked


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize("change", ["slash", "case", "other", "missing", "list"])
async def test_the_document_must_be_the_issuers(
    change: str, client: httpx2.AsyncClient, idp: IdentityProvider
) -> None:
    named: object = {
        "slash": idp.issuer + "/",
        "case": idp.issuer.upper(),
        "other": "https://issuer.example",
        "missing": None,
        "list": [idp.issuer],
    }[change]
    idp.document["issuer"] = named
    with pytest.raises(ProviderFault, match="issuer"):
        await DiscoveredProvider(client, idp.issuer).key_set()
    assert idp.asked[KEYS] == 0


async def test_an_issuer_written_with_a_slash(
    client: httpx2.AsyncClient, idp: IdentityProvider
) -> None:
    idp.document["issuer"] = idp.issuer + "/"
    assert await DiscoveredProvider(client, idp.issuer + "/").key_set()


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize("path", [DISCOVERY, KEYS])
async def test_answers_are_bounded(
    path: str, client: httpx2.AsyncClient, idp: IdentityProvider
) -> None:
    provider = DiscoveredProvider(client, idp.issuer)
    for headers, body, words in (
        ({}, b" " * (300 << 10), "more than"),
        ({"Content-Encoding": "gzip"}, gzip.compress(b" " * (64 << 20)), "encoding"),
    ):
        idp.answers[path] = (200, headers, body)
        with pytest.raises(ProviderFault, match=words):
            await provider.key_set()


@pytest.mark.spec("AUTH-2")
async def test_a_silent_provider_is_given_up(
    client: httpx2.AsyncClient, idp: IdentityProvider
) -> None:
    idp.free.clear()
    with pytest.raises(ProviderFault, match="no answer within"):
        await DiscoveredProvider(client, idp.issuer, timeout_s=0.1).key_set()
    idp.free.set()
    with pytest.raises(ProviderFault, match="ConnectError"):
        await DiscoveredProvider(client, "http://127.0.0.1:1").key_set()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"issuer":"a","issuer":"b"}', b"\xff"])
async def test_a_document_that_is_none(
    body: bytes, client: httpx2.AsyncClient, idp: IdentityProvider
) -> None:
    idp.answers[DISCOVERY] = (200, {}, body)
    with pytest.raises(ProviderFault):
        await DiscoveredProvider(client, idp.issuer).key_set()


@pytest.mark.parametrize("body", [b'{"x":' + DEEP + b"}", b'{"x":"\xff"}', b"[]"])
def test_what_is_no_object_is_none(body: bytes) -> None:
    assert read_object(body) is None
