"""Lets Slurm judge a Slurm token: it asks slurmrestd something with that token.

Nothing here verifies a signature. slurmrestd passes a token on, and slurmctld verifies it. `/ping`
is no proof: slurmrestd of 24.11 and later answers it for a forged token, too. Three questions are:

1. Without a token, as the user that it names, slurmrestd must refuse (401). One with
   `rest_auth/local` would answer, and so answer a forged token, too.
2. With the token, as that user, Slurm must answer.
3. With the token, as somebody else, Slurm must refuse. Tokens of root and SlurmUser may speak for
   everybody, so they sign nobody in.

The user is in the part of the token that is signed (`sun`), which Slurm prefers to any other claim.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from lattice.adapters.oidc.strict import base64url, json_object
from lattice.adapters.slurm.answer import SlurmRefused, read_answer
from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.http_client import RestReply
from lattice.adapters.slurm.rest import TOKEN_HEADER, USER_HEADER, SlurmRest
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.base.clock import Clock
from lattice.base.errors import RateLimited, Unavailable

NOBODY = "nobody"
"""As whom nobody's token may ask: on every host, and the owner of nothing."""
NO_TOKEN = "-"  # noqa: S105 - that it is none is the point
"""For the list of paths: slurmrestd gives it for any token."""
_LIST = "licenses"
"""Short, and every user may read it."""
_ALGORITHMS = ("HS256", "RS256")
_LARGEST = 4096
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}\$?", re.ASCII)
_NO_PEOPLE = {"root", NOBODY}
_TIMEOUT_S = 5.0
_LIMIT_BYTES = 4 * 1024 * 1024
_AT_ONCE = 4
_MOST_WAITING = 100
_REFUSALS = (401, 403, 511)
_NOT_AUTHENTICATED = 1007
"""SLURM_PROTOCOL_AUTHENTICATION_ERROR."""
_UNSPECIFIED = -1
"""All that 22.05 says of a refusal. While slurmctld is away, it says so only after the timeout."""


class BadSlurmToken(ValueError):
    """The token is not accepted; the text is the reason, without any of the token."""


@dataclass(frozen=True, slots=True)
class SlurmClaims:
    """What a token claims. Nothing is verified."""

    user: str
    end: int

    @classmethod
    def parse(cls, token: str) -> SlurmClaims:
        """Raises `BadSlurmToken`."""
        if len(token) > _LARGEST or not token.isascii():
            raise BadSlurmToken("not the form of a Slurm token")
        try:
            head, body, signature = (base64url(each) for each in token.encode().split(b"."))
            header, claims = json_object(head), json_object(body)
        except ValueError:
            raise BadSlurmToken("not the form of a Slurm token") from None
        if header.get("alg") not in _ALGORITHMS or not signature:
            raise BadSlurmToken("it is not signed")
        user, end = claims.get("sun"), claims.get("exp")
        if not isinstance(user, str) or not _USER.fullmatch(user):
            raise BadSlurmToken("it names no Unix user (sun)")
        if type(end) is not int:
            raise BadSlurmToken("it has no end (exp)")
        return cls(user, end)


class SlurmTokenJudge:
    """Asks one slurmrestd with `rest_auth/jwt`."""

    def __init__(self, rest: SlurmRest, clock: Clock) -> None:
        """`rest` has `NO_TOKEN` and `NOBODY`, and is closed by the caller."""
        self._rest = rest
        self._clock = clock
        self._dialects = Dialects(rest, known_schemas(), clock)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def judge(self, token: str) -> tuple[str, int]:
        """The user who alone it is for, and its end in seconds since 1970.

        Raises `BadSlurmToken`, `RateLimited`, or `Unavailable`.
        """
        claims = SlurmClaims.parse(token)
        if claims.end <= self._clock.now().timestamp():
            raise BadSlurmToken("it has expired")
        if claims.user in _NO_PEOPLE:
            raise BadSlurmToken(f"{claims.user} can't sign in")
        if self._waiting >= _MOST_WAITING:
            raise RateLimited("Too many people sign in at once.", retry_after_s=1)
        self._waiting += 1
        try:
            async with self._slots:
                await self._ask(token, claims.user)
        finally:
            self._waiting -= 1
        return claims.user, claims.end

    async def check(self) -> str:
        """That this slurmrestd wants tokens. Returns its address; raises `Unavailable`."""
        await self._check(await self._path(), {})
        return self._rest.address

    async def _check(self, path: str, caller: dict[str, str]) -> None:
        if (await self._reply(path, caller)).status != 401:
            raise Unavailable(
                f"slurmrestd at {self._rest.address} answers without a token, so it judges none.",
                hint="An administrator starts one with `-a rest_auth/jwt` alone, and names it in "
                "api.slurm_tokens_url.",
            )

    async def _ask(self, token: str, user: str) -> None:
        path = await self._path()
        # As that user: `rest_auth/local` answers root by the name, and others whatever the name is.
        await self._check(path, {USER_HEADER: user})
        if not await self._accepts(path, token, user):
            raise BadSlurmToken(f"Slurm refused a token for {user}")
        if await self._accepts(path, token, NOBODY):
            raise BadSlurmToken(f"the token of {user} speaks for others, as root's and SlurmUser's")

    async def _path(self) -> str:
        dialect = await self._dialects.live()
        try:
            return dialect.path(_LIST)
        except KeyError:
            raise Unavailable(f"slurmrestd at {self._rest.address} offers no {_LIST}.") from None

    async def _accepts(self, path: str, token: str, user: str) -> bool:
        reply = await self._reply(path, {USER_HEADER: user, TOKEN_HEADER: token})
        if reply.status in _REFUSALS:
            return False
        answer = read_answer(reply.body, _LIST)
        if reply.status == 200 and answer.listed and not answer.problems:
            return True
        numbers = {each.number for each in answer.problems}
        if _NOT_AUTHENTICATED in numbers or (reply.status == 500 and _UNSPECIFIED in numbers):
            return False
        raise SlurmRefused(
            f"slurmrestd could not judge a token (HTTP {reply.status}).",
            hint="Is slurmctld running?",
            problems=answer.problems,
        )

    async def _reply(self, path: str, caller: dict[str, str]) -> RestReply:
        return await self._rest.get(
            path, timeout_s=_TIMEOUT_S, limit_bytes=_LIMIT_BYTES, caller=caller
        )
