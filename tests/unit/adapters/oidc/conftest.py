from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
import trustme

from lattice.adapters.oidc.discovery import DiscoveredProvider, provider_client
from lattice.adapters.oidc.keys import KeyCache
from lattice.adapters.oidc.verify import JwksVerifier
from tests.fakes.identity_provider import (
    AUDIENCE,
    EcSigner,
    HandClock,
    IdentityProvider,
    RsaSigner,
    running_provider,
)


@pytest.fixture(scope="session")
def rsa_signer() -> RsaSigner:
    return RsaSigner.make("rsa-1")


@pytest.fixture(scope="session")
def ec_signer() -> EcSigner:
    return EcSigner.make("ec-1")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def idp(rsa_signer: RsaSigner, ec_signer: EcSigner) -> Iterator[IdentityProvider]:
    with running_provider() as provider:
        provider.signers = [rsa_signer, ec_signer]
        yield provider


@pytest.fixture(scope="session")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short list: reading the system's takes longer than most tests."""
    file = tmp_path_factory.mktemp("ca") / "ca.pem"
    trustme.CA(key_type=trustme.KeyType.ECDSA).cert_pem.write_to_path(str(file))
    return file


@pytest.fixture
async def client(authorities: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with provider_client(authorities) as client:
        yield client


@pytest.fixture
async def cache(
    client: httpx2.AsyncClient, idp: IdentityProvider, clock: HandClock
) -> AsyncIterator[KeyCache]:
    keys = KeyCache(DiscoveredProvider(client, idp.issuer).key_set, clock)
    yield keys
    await keys.aclose()


@pytest.fixture
def verifier(idp: IdentityProvider, cache: KeyCache, clock: HandClock) -> JwksVerifier:
    return JwksVerifier(cache, issuer=idp.issuer, audience=AUDIENCE, clock=clock)
