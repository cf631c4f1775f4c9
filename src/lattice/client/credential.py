"""What is stored of a sign-in besides its refresh token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Credential(NamedTuple):
    """An access token, its expiry (seconds since 1970; None: unknown), and who can renew it."""

    access_token: str
    expires_at: float | None
    issuer: str
    client_id: str

    def __repr__(self) -> str:
        """Without the token, because this text may get into a log."""
        return f"Credential(issuer={self.issuer!r}, client_id={self.client_id!r})"

    def document(self) -> dict[str, object]:
        """The content of the file."""
        return self._asdict()

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Credential | None:
        """From the content of the file; None if it has anything else."""
        token = document.get("access_token")
        end = document.get("expires_at")
        issuer, client_id = document.get("issuer"), document.get("client_id")
        if not (isinstance(token, str) and isinstance(issuer, str) and isinstance(client_id, str)):
            return None
        if end is not None and not isinstance(end, int | float):
            return None
        return cls(token, expires_at=end, issuer=issuer, client_id=client_id)


SAME_AS = "same_as"
"""In place of a sign-in: the address of the replica that it is kept under."""


def replica_of_signin(
    servers: Sequence[str], document_of: Callable[[str], Mapping[str, object] | None]
) -> str:
    """The replica under which their one sign-in is kept; the first if there is none."""
    for server in servers:
        document = document_of(server)
        if not document:
            continue
        other = document.get(SAME_AS)
        if not isinstance(other, str):
            return server
        if document_of(other):
            return other
    return servers[0]
