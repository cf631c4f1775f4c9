"""The token of a call: from the environment, or a stored sign-in that is renewed silently."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from lattice.base.errors import ConfigurationError, LoginRequired, Unavailable
from lattice.base.fast_start.connector import LOOPBACK
from lattice.client.answers import NOT_LOGGED_IN
from lattice.client.credential import Credential
from lattice.client.settings import Settings

if TYPE_CHECKING:
    from lattice.client.munge_sign_in import Caller
    from lattice.domain.signin import Tokens

RENEW_BEFORE_S = 60.0
WARN_BEFORE_S = 300.0
_PATIENCE_S = 15.0
_ENDED = "Your sign-in has ended. Run `lattice login` again."


class TokenSource(Protocol):
    """Where tokens come from."""

    def token(self) -> str | None:
        """A token that is valid now; None if nobody has signed in."""

    def renewed(self, refused: str) -> str | None:
        """Another token in place of one that the server refused; None if there is none."""


def usable_token(tokens: TokenSource, urls: Iterable[str]) -> str | None:
    """A token for these servers; None only if all of them are on loopback and may need none.

    Raises `LoginRequired`.
    """
    token = tokens.token()
    if token is None and not all(urlsplit(url).hostname in LOOPBACK for url in urls):
        raise LoginRequired(NOT_LOGGED_IN)
    return token


class FixedToken:
    """One token that is never renewed, such as that of LATTICE_TOKEN."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def token(self) -> str | None:
        return self._token

    def renewed(self, refused: str) -> str | None:  # noqa: ARG002 - there is only the one
        return None


class HeldClaim(Protocol):
    """A refresh token that only this process may use now."""

    token: str

    def held(self) -> bool: ...
    def give_back(self) -> None: ...
    def finish(self, credential: Credential, refresh: str | None) -> None: ...
    def drop(self) -> None: ...


class Vault(Protocol):
    """Stores the sign-in of one cluster."""

    def read(self) -> Credential | None: ...
    def save(self, credential: Credential, refresh: str | None) -> None: ...
    def delete(self) -> None: ...
    def renewable(self) -> bool: ...
    def claim(self) -> HeldClaim | None: ...


class VaultLocker:
    """The vault as the port `Locker`, for the commands that sign in and out."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def keep(self, tokens: Tokens, *, issuer: str, client_id: str) -> None:
        end = None if tokens.lifetime_s is None else time.time() + tokens.lifetime_s
        credential = Credential(tokens.access, expires_at=end, issuer=issuer, client_id=client_id)
        self._vault.save(credential, tokens.refresh)

    def empty(self) -> tuple[str, ...]:
        claim = self._vault.claim()
        stored = self._vault.read()
        self._vault.delete()
        # The refresh token first: revoking it ends the grant and, at most providers, both.
        found = (claim.token if claim else None, stored.access_token if stored else None)
        return tuple(token for token in found if token)

    def expires_at(self) -> float | None:
        stored = self._vault.read()
        return stored.expires_at if stored else None

    def issuer(self) -> str:
        stored = self._vault.read()
        return stored.issuer if stored else ""

    def holds(self) -> bool:
        return self._vault.read() is not None


class StoredTokens:
    """A stored sign-in, renewed by exactly one process when it is about to end."""

    def __init__(
        self,
        vault: Vault,
        renew: Callable[[Credential, str], Tokens],
        *,
        warn: Callable[[str], None],
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._vault = vault
        self._renew = renew
        self._warn = warn
        self._now = now
        self._sleep = sleep
        self._credential: Credential | None = None

    def token(self) -> str | None:
        credential = self._credential
        if credential is None or self._left_s(credential) <= RENEW_BEFORE_S:
            credential = self._vault.read()
            if credential is None:
                return None
            if self._left_s(credential) <= WARN_BEFORE_S:
                credential = self._before_the_end(credential)
            self._credential = credential
        return credential.access_token

    def renewed(self, refused: str) -> str | None:
        credential = self._vault.read()
        if credential is None:
            return None
        if credential.access_token == refused:
            if not self._vault.renewable():
                return None
            credential = self._renewal(refused)
        self._credential = credential
        return credential.access_token

    def _left_s(self, credential: Credential) -> float:
        end = credential.expires_at
        return float("inf") if end is None else end - self._now()

    def _before_the_end(self, credential: Credential) -> Credential:
        left_s = self._left_s(credential)
        if self._vault.renewable():
            return self._renewal("") if left_s <= RENEW_BEFORE_S else credential
        if left_s <= 0:
            raise LoginRequired(_ENDED)
        self._warn(
            f"Your sign-in ends in {int(left_s)} s and can't be renewed; run `lattice login`."
        )
        return credential

    def _renewal(self, refused: str) -> Credential:
        """Renew, or wait for the process that does. The token `refused` counts as expired."""
        end = self._now() + _PATIENCE_S
        while True:
            claim = self._vault.claim()
            # Read after the claim: the previous holder has stored its result by now.
            credential = self._vault.read()
            if credential is None:
                if claim is not None:
                    claim.drop()
                raise LoginRequired(_ENDED)
            if credential.access_token != refused and self._left_s(credential) > RENEW_BEFORE_S:
                if claim is not None:
                    claim.give_back()
                return credential
            if claim is not None:
                return self._use(claim, credential, refused)
            if not self._vault.renewable() or self._now() > end:
                return self._make_do(credential, refused, "another process is at it")
            self._sleep(0.1)

    def _use(self, claim: HeldClaim, credential: Credential, refused: str) -> Credential:
        from lattice.domain.signin import GrantRefused  # noqa: PLC0415 - rarely needed

        try:
            tokens = self._renew(credential, claim.token)
        except GrantRefused:
            claim.drop()
            # A last look: a new sign-in, or a process that lost its claim but got its response.
            latest = self._vault.read()
            if latest is None or latest.access_token in {credential.access_token, refused}:
                raise LoginRequired(_ENDED) from None
            return latest
        except Unavailable as error:
            claim.give_back()
            return self._make_do(credential, refused, f"that failed: {error.message.rstrip('.')}")
        except BaseException:
            claim.give_back()
            raise
        lifetime_s = tokens.lifetime_s
        fresh = Credential(
            tokens.access,
            expires_at=None if lifetime_s is None else self._now() + lifetime_s,
            issuer=credential.issuer,
            client_id=credential.client_id,
        )
        claim.finish(fresh, tokens.refresh)
        return fresh

    def _make_do(self, credential: Credential, refused: str, why: str) -> Credential:
        if credential.access_token != refused and self._left_s(credential) > 0:
            return credential
        if not self._vault.renewable():
            raise LoginRequired(_ENDED)
        raise Unavailable(
            f"Your sign-in has to be renewed, and {why}.",
            hint="Try again in a moment; `lattice login` signs in anew.",
        )


def open_vault(settings: Settings) -> Vault:
    """The vault that the settings name, for the cluster of their replicas."""
    if settings.credentials == "keyring":
        try:
            from lattice.client.keyring_vault import KeyringVault  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigurationError(
                "`credentials: keyring` needs the keyring package, which is not installed",
                hint="Install lattice-hpc[keyring], or set `credentials: file`.",
            ) from None
        return KeyringVault(settings.folder, *settings.urls)
    from lattice.client.credentials import CredentialFolder  # noqa: PLC0415 - not with LATTICE_TOKEN

    return CredentialFolder(settings.folder, *settings.urls)


def token_source(
    settings: Settings,
    caller: Caller,
    *,
    environment: Mapping[str, str] | None = None,
    warn: Callable[[str], None] | None = None,
) -> TokenSource:
    """LATTICE_TOKEN if it is set, else the stored sign-in.

    `caller` asks the server itself for another token where that issued the one before.
    """
    if settings.token is not None:
        return FixedToken(settings.token)
    environment = os.environ if environment is None else environment

    def renew(credential: Credential, refresh: str) -> Tokens:
        from lattice.domain.munge_claim import MUNGE  # noqa: PLC0415 - rarely needed
        from lattice.domain.signin import SLURM  # noqa: PLC0415

        if credential.issuer == MUNGE:
            from lattice.client.munge_sign_in import renewed_tokens  # noqa: PLC0415

            return renewed_tokens(caller, credential.client_id, environment)
        if credential.issuer == SLURM:
            from lattice.client import slurm_sign_in  # noqa: PLC0415

            return slurm_sign_in.renewed_tokens(caller, settings.urls, environment)
        from lattice.adapters.oidc.signin import SignInProvider  # noqa: PLC0415 - rarely needed

        provider = SignInProvider.at(
            credential.issuer, credential.client_id, ca=settings.ca, environment=environment
        )
        return provider.renew(refresh)

    return StoredTokens(open_vault(settings), renew, warn=warn or _to_stderr)


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
