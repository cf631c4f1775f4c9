"""The port for verifying tokens, and the one refusal of a token. Pure.

The caller gets one fixed message, whatever was wrong, so that attempts teach a forger nothing. The
log gets the reason. The hint has more only for a token that is genuine but has expired or was made
for another audience.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lattice.base.errors import LoginRequired

REFUSED = "The token was not accepted."
LOGIN_HINT = "Run `lattice login`."
OWN_ISSUER = "lattice"
"""The issuer of the tokens that servers issue themselves."""


class TokenRefused(LoginRequired):
    """`reason` is the failed check: for the log, never for the caller."""

    def __init__(self, reason: str, *, hint: str = LOGIN_HINT) -> None:
        super().__init__(REFUSED, hint=hint)
        self.reason = reason


class TokenVerifier(Protocol):
    """Checks that a token is genuine, meant for this server, and not expired."""

    @property
    def needs_token(self) -> bool:
        """False if callers need no token at all."""

    async def verify(self, token: str) -> Mapping[str, Any]:
        """The claims of a token that passed every check; `sub` and `exp` are reliable.

        Raises `TokenRefused`, or `Unavailable` while no token can be checked.
        """
