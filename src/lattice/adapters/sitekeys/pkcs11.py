"""The site's keys in a token behind PKCS#11: a hardware module, or SoftHSM.

A key never leaves the token: the token encrypts and decrypts data keys. Each question has a process
of its own (`pkcs11_process`). So a module that hangs is killed after some seconds, and one that
crashes takes no server with it. Questions are rare: a server caches data keys.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lattice.adapters.sitekeys.file import changed_key
from lattice.adapters.sitekeys.pkcs11_process import TokenAnswer, TokenFault, TokenQuestion
from lattice.base.errors import Unavailable
from lattice.base.malloc import OVERWRITES_NAMES
from lattice.domain.site_keys import WrappedKey

_ARGV = (sys.executable, "-P", "-m", "lattice.adapters.sitekeys.pkcs11_process")
_WITHIN_S = 5.0
_AT_ONCE = 2
_ENVIRONMENT = (
    *OVERWRITES_NAMES,
    "PATH",
    "LANG",
    "LC_ALL",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "SOFTHSM2_CONF",
)


@dataclass(frozen=True, slots=True)
class Token:
    """Where the keys are."""

    module: Path
    """The library of the token."""
    label: str
    pin_file: Path
    key: str
    """The label of the key that wraps; older keys on the token unwrap."""


class Pkcs11SiteKeys:
    """The port `SiteKeys`."""

    def __init__(
        self, token: Token, within_s: float = _WITHIN_S, argv: Sequence[str] = _ARGV
    ) -> None:
        self._token = token
        self._within_s = within_s
        self._argv = tuple(argv)
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def newest(self) -> str:
        return self._token.key

    async def create(self, label: str) -> None:
        """Make a key on the token that never leaves it. Raises `Unavailable`."""
        await self._ask("create", label, b"", b"")

    async def wrap(self, secret: bytes, bound: bytes) -> WrappedKey:
        name = self._token.key
        return WrappedKey(name, await self._ask("wrap", name, secret, bound))

    async def unwrap(self, wrapped: WrappedKey, bound: bytes) -> bytes:
        return await self._ask("unwrap", wrapped.site_key, wrapped.secret, bound)

    async def _ask(self, act: str, key: str, data: bytes, bound: bytes) -> bytes:
        token = self._token
        question = TokenQuestion(
            act, str(token.module), token.label, str(token.pin_file), key, data, bound
        )
        try:
            async with asyncio.timeout(self._within_s), self._turns:
                answer = await self._answer(msgspec.msgpack.encode(question))
        except TimeoutError:
            raise self._away(f"does not answer within {self._within_s:g} s") from None
        except (OSError, EOFError, msgspec.MsgspecError):
            raise self._away("ended without an answer") from None
        if answer.fault is TokenFault.CHANGED:
            raise changed_key()
        if answer.fault is not None:
            raise self._away(answer.reason[:200])
        return answer.data

    async def _answer(self, question: bytes) -> TokenAnswer:
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            cwd="/",
        )
        try:
            out, _ = await process.communicate(question)
            return msgspec.msgpack.decode(out, type=TokenAnswer)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def _away(self, reason: str) -> Unavailable:
        return Unavailable(
            f"The token with the site's keys {reason}.",
            hint=f"An administrator checks the token {self._token.label!r} on the server.",
        )
