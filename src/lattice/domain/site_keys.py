"""The port of the site's keys: they wrap the data keys of allocations. Pure.

A data key is stored wrapped only. The wrapped form names its site key. So a rotation wraps data
keys again, and encrypts no object again.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class WrappedKey(msgspec.Struct, frozen=True):
    """A secret, encrypted by the named key of the site."""

    site_key: str
    secret: bytes


class SiteKeys(Protocol):
    """The key service. Every method raises `Unavailable` within seconds if it does not answer."""

    async def newest(self) -> str:
        """The name of the key that wraps new secrets."""

    async def wrap(self, secret: bytes, bound: bytes) -> WrappedKey:
        """Wrap with the newest key. `bound` is needed again to unwrap."""

    async def unwrap(self, wrapped: WrappedKey, bound: bytes) -> bytes:
        """The secret. Raises `DataUnavailable` if it was changed or is of something else.

        Raises `Unavailable` if the service lacks its site key: somebody may put it back.
        """
