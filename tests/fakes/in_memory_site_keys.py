"""The site's keys in memory, for tests of what stands on the port. Passes its contract suite."""

from __future__ import annotations

import secrets

from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.sealed import BadSealed, DataKey, open_part, seal_part
from lattice.domain.site_keys import WrappedKey


class InMemorySiteKeys:
    """The last key wraps. `away` answers nothing; `asked` counts unwrapped keys."""

    def __init__(self, *names: str) -> None:
        self.keys = {each: secrets.token_bytes(32) for each in names or ("site-1",)}
        self.away = False
        self.asked = 0

    def rotate(self, name: str) -> None:
        self.keys[name] = secrets.token_bytes(32)

    async def newest(self) -> str:
        self._check()
        return list(self.keys)[-1]

    async def wrap(self, secret: bytes, bound: bytes) -> WrappedKey:
        name = await self.newest()
        return WrappedKey(name, seal_part(DataKey(bytes(16), self.keys[name]), bound, secret))

    async def unwrap(self, wrapped: WrappedKey, bound: bytes) -> bytes:
        self._check()
        self.asked += 1
        if wrapped.site_key not in self.keys:
            raise Unavailable(f"There is no key {wrapped.site_key!r}.", hint="Put it back.")
        key = DataKey(bytes(16), self.keys[wrapped.site_key])
        try:
            return open_part(key, bound, wrapped.secret)
        except BadSealed:
            raise DataUnavailable("A wrapped data key was changed.", hint="Restore it.") from None

    def _check(self) -> None:
        if self.away:
            raise Unavailable("The key service does not answer.", hint="Start it.")
