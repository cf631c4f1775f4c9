"""Opens the verifier that the configuration asks for, and closes it again with the server."""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lattice.access.tokens import TokenVerifier
from lattice.adapters.oidc.discovery import Provider, provider_client
from lattice.adapters.oidc.keys import KeyCache
from lattice.adapters.oidc.verify import HmacVerifier, JwksVerifier, NoVerifier
from lattice.base.clock import Clock
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.server.sections import ApiSection


@asynccontextmanager
async def open_verifier(
    api: ApiSection, clock: Clock, supervisor: Supervisor
) -> AsyncIterator[TokenVerifier]:
    """Issuer before shared secret before none; the keys are kept fresh while it is open."""
    if api.oidc_issuer is not None:
        async with _issuer_verifier(api, api.oidc_issuer, clock, supervisor) as verifier:
            yield verifier
    elif api.oidc_hmac_secret is not None:
        secret = api.oidc_hmac_secret.reveal().encode()
        yield HmacVerifier(secret, audience=api.audience, clock=clock)
    else:
        yield NoVerifier(_own_user(), user_claim=api.user_claim)


@asynccontextmanager
async def _issuer_verifier(
    api: ApiSection, issuer: str, clock: Clock, supervisor: Supervisor
) -> AsyncIterator[TokenVerifier]:
    async with provider_client(api.oidc_ca) as client:
        keys = KeyCache(Provider(client, issuer, jwks_uri=api.oidc_jwks_uri).key_set, clock)
        try:
            async with supervisor.running(Loop("oidc keys", keys.keep_fresh, OnFailure.RESTART)):
                audience = api.audience or ""
                yield JwksVerifier(
                    keys,
                    issuer=issuer,
                    audience=audience,
                    clock=clock,
                    id_claims=api.oidc_id_claims,
                )
        finally:
            await keys.aclose()


def _own_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        # A user without a name owns no jobs that Slurm could name.
        return ""
