"""The port to whatever verifies tokens, and the one way in which a token is refused. Pure.

A refusal has two faces. The caller reads one fixed message, whatever was wrong, so that nobody
learns by trying how close a forgery came. The log gets the reason. The hint may say more only to
one whose token is genuine in all but one respect: it has run out, or was made for someone else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lattice.base.errors import LoginRequired

REFUSED = "The token was not accepted."
LOGIN_HINT = "Run `lattice login`."


class TokenRefused(LoginRequired):
    """`reason` says which check failed: for the log, never for the caller."""

    def __init__(self, reason: str, *, hint: str = LOGIN_HINT) -> None:
        super().__init__(REFUSED, hint=hint)
        self.reason = reason


class TokenVerifier(Protocol):
    """Tells whether a token is genuine, meant for this server, and still holds."""

    @property
    def needs_token(self) -> bool:
        """False where callers are not asked for one at all."""

    async def verify(self, token: str) -> Mapping[str, Any]:
        """The claims of a token that passed every check; `sub` and `exp` can be relied on.

        Raises `TokenRefused`, or `Unavailable` while no token at all can be judged.
        """
