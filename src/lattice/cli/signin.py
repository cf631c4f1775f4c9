"""The vault and the identity provider, made for the commands that sign in and out."""

from __future__ import annotations

import time
from collections.abc import Mapping

from lattice.adapters.oidc.signin import SignInProvider
from lattice.client.credential import Credential
from lattice.client.settings import Settings
from lattice.client.tokens import Vault
from lattice.domain.signin import Tokens
from lattice.features.identity.model import AuthDiscovery


class VaultLocker:
    """The SDK's vault as the port `Locker`."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def keep(self, tokens: Tokens, *, issuer: str, client_id: str) -> None:
        end = None if tokens.lifetime_s is None else time.time() + tokens.lifetime_s
        credential = Credential(tokens.access, expires_at=end, issuer=issuer, client_id=client_id)
        self._vault.save(credential, tokens.refresh)

    def empty(self) -> tuple[str, ...]:
        claim = self._vault.claim()
        kept = self._vault.read()
        self._vault.delete()
        # The refresh token first: revoking it ends the grant and, at most providers, both.
        found = (claim.token if claim else None, kept.access_token if kept else None)
        return tuple(token for token in found if token)

    def expires_at(self) -> float | None:
        kept = self._vault.read()
        return kept.expires_at if kept else None

    def holds(self) -> bool:
        return self._vault.read() is not None


def provider(
    discovery: AuthDiscovery,
    settings: Settings,
    environment: Mapping[str, str],
    *,
    browser: bool,
) -> SignInProvider:
    """The provider that the server names, with this machine's settings."""
    return SignInProvider.at(
        discovery.issuer,
        discovery.client_id,
        address=discovery.idp_url or discovery.issuer,
        ca=settings.ca,
        environment=environment,
        browser=browser,
    )
