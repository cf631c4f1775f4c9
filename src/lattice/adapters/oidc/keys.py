"""The identity provider's keys: parsed, pinned to one algorithm each, cached and refreshed.

RSA keys verify RS256 and P-256 keys ES256, nothing else. A shared key in a key set is never used.
The cache answers at once for every key it has. An unknown key id may start a fetch, at most one in
`COOLDOWN_S` for all callers together. Callers with known keys never wait for it. While the provider
is down the cached keys stay in use. A server without any key fetches each second, and its callers
wait for that: the server may have started just before its provider.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, RSAKey

from lattice.adapters.oidc.discovery import ProviderFault
from lattice.adapters.oidc.strict import json_object
from lattice.base.clock import Clock

_log = logging.getLogger("lattice.oidc")

COOLDOWN_S = 30.0
_REFRESH_S = 300.0
_RETRY_S = 1.0
_MOST_WAITING = 64
_MOST_KEYS = 64
_SMALLEST_RSA_BITS, _LARGEST_RSA_BITS = 2048, 8192
_LONGEST_KID = 255

VerifyingKey = RSAKey | ECKey


@dataclass(frozen=True, slots=True)
class PinnedKey:
    """A key and the one algorithm it may be used with."""

    kid: str | None
    algorithm: str
    key: VerifyingKey


class KeySet:
    """The keys of one fetch."""

    def __init__(self, keys: Iterable[PinnedKey] = ()) -> None:
        self._keys = tuple(keys)
        self._by_name = {(each.kid, each.algorithm): each.key for each in reversed(self._keys)}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def kids(self) -> tuple[str, ...]:
        """For the log."""
        return tuple(each.kid or "(none)" for each in self._keys)

    def find(self, kid: str | None, algorithm: str) -> VerifyingKey | None:
        """The key with this id; without an id, the only key for the algorithm."""
        if kid is not None:
            return self._by_name.get((kid, algorithm))
        fitting = [each.key for each in self._keys if each.algorithm == algorithm]
        return fitting[0] if len(fitting) == 1 else None


def read_key_set(document: bytes) -> KeySet:
    """The usable keys of a JWK set; skips others. Raises ValueError if none is left."""
    listed = json_object(document).get("keys")
    if not isinstance(listed, list) or len(listed) > _MOST_KEYS:
        raise ValueError("no list of keys, or too long a one")
    pinned = [_pinned(each) for each in listed if isinstance(each, dict)]
    keys = KeySet(each for each in pinned if each is not None)
    if not keys:
        raise ValueError("no key that can be used (RSA of 2048 bits or more, or EC P-256)")
    return keys


def _pinned(entry: dict[str, Any]) -> PinnedKey | None:
    algorithm = {"RSA": "RS256", "EC": "ES256"}.get(str(entry.get("kty")))
    kid = entry.get("kid")
    if algorithm is None or not _is_for_verifying(entry, algorithm):
        return None
    if kid is not None and (not isinstance(kid, str) or len(kid) > _LONGEST_KID):
        return None
    try:
        key = _imported(entry)
    except (JoseError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return None if key is None else PinnedKey(kid, algorithm, key)


def _is_for_verifying(entry: dict[str, Any], algorithm: str) -> bool:
    operations = entry.get("key_ops")
    return (
        entry.get("use", "sig") == "sig"
        and entry.get("alg", algorithm) == algorithm
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )


def _imported(entry: dict[str, Any]) -> VerifyingKey | None:
    # Only the public numbers are copied: other fields of an entry have no effect later.
    names = ("kty", "n", "e") if entry["kty"] == "RSA" else ("kty", "crv", "x", "y")
    numbers = {name: entry[name] for name in names}
    if not all(isinstance(each, str) for each in numbers.values()):
        return None
    if entry["kty"] == "EC":
        return ECKey.import_key(numbers) if numbers["crv"] == "P-256" else None
    with warnings.catch_warnings():
        # joserfc warns of a short key; the check below refuses it.
        warnings.simplefilter("ignore", SecurityWarning)
        key = RSAKey.import_key(numbers)
    bits = key.public_key.key_size
    return key if _SMALLEST_RSA_BITS <= bits <= _LARGEST_RSA_BITS else None


class KeyCache:
    """Keys by id, fetched on demand. For one event loop; `aclose` cancels a running fetch."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys = KeySet()
        self._fetching: asyncio.Task[None] | None = None
        self._started: float | None = None
        self._fresh = False
        self._waiting = 0

    @property
    def loaded(self) -> bool:
        """False until keys were fetched once; before that no token can be verified."""
        return len(self._keys) > 0

    async def find(self, kid: str | None, algorithm: str) -> VerifyingKey | None:
        """The key from the cache; else after a fetch, if one is due."""
        key = self._keys.find(kid, algorithm)
        # A token without a key id can't name a new key, so it starts no fetch.
        if key is not None or (kid is None and self.loaded):
            return key
        rest_s = self._rest_s()
        if self._waiting >= _MOST_WAITING or (self.loaded and rest_s > 0):
            return None
        self._waiting += 1
        try:
            await asyncio.sleep(rest_s)
            await self.refresh()
        finally:
            self._waiting -= 1
        return self._keys.find(kid, algorithm)

    def _rest_s(self) -> float:
        """Seconds until the next fetch is allowed; 0 if one is running."""
        if self._fetching is not None or self._started is None:
            return 0.0
        pause_s = COOLDOWN_S if self.loaded else _RETRY_S
        return max(0.0, self._started + pause_s - self._clock.monotonic())

    async def refresh(self) -> None:
        """Fetch once, or join the running fetch. Failures are logged, never raised."""
        if self._fetching is None:
            self._started = self._clock.monotonic()
            self._fetching = asyncio.create_task(self._load(), name="oidc-keys")
        # Shielded: if one waiting caller is cancelled, the others still need it.
        await asyncio.shield(self._fetching)

    async def _load(self) -> None:
        try:
            keys = read_key_set(await self._fetch())
        except (ProviderFault, ValueError) as error:
            self._fresh = False
            _log.warning(
                "keys of the identity provider not fetched",
                extra={"reason": str(error), "keys_held": len(self._keys)},
            )
        else:
            if keys.kids != self._keys.kids or not self._fresh:
                _log.info("keys of the identity provider fetched", extra={"kids": list(keys.kids)})
            self._keys, self._fresh = keys, True
        finally:
            self._fetching = None

    async def keep_fresh(self) -> None:
        """Fetch periodically until cancelled, independent of callers."""
        while True:
            await self.refresh()
            pause_s = _REFRESH_S if self._fresh else COOLDOWN_S if self.loaded else _RETRY_S
            await asyncio.sleep(pause_s)

    async def aclose(self) -> None:
        """Cancel a running fetch."""
        if self._fetching is not None:
            self._fetching.cancel()
            with suppress(asyncio.CancelledError):
                await self._fetching
