"""A token of a job: what a job may ask of the servers without its owner. Pure.

It names one run of one allocation, and the node that asked for it. Servers take it from that node's
agent alone: a copy of it is worth nothing elsewhere. Its form is that of a grant,
`KEY.PAYLOAD.SIGNATURE`, with a prefix of its own under the signature.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from lattice.base.strictjson import read_fields, read_json

LONGEST_LIFETIME_S = 600
_LEEWAY_S = 5
_DOMAIN = b"lattice job 1\n"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class BadJobToken(Exception):
    """Not a token of a job of this node. The text is for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobToken:
    """The signed content."""

    id: str
    """32 random hex digits."""
    cluster: str
    node: str
    """The node whose agent asked for it, by its certificate."""
    allocation: str
    """The allocation's unambiguous name."""
    attempt: int
    job_id: int
    user: str
    """The owner, by Slurm's word."""
    issued: int
    expires: int

    def payload(self) -> bytes:
        """The signed bytes, without the domain prefix."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    def fault(self, cluster: str, node: str, now_s: float) -> str:
        """Why it is not valid here and now, or an empty text."""
        if self.cluster != cluster:
            return "it is of another cluster"
        if self.node != node:
            return f"it is for {self.node}, not {node}"
        if not 0 < self.expires - self.issued <= LONGEST_LIFETIME_S:
            return "it lives too long"
        if not self.issued - _LEEWAY_S <= now_s < self.expires:
            return "it has expired"
        return ""


def to_sign(payload: bytes) -> bytes:
    """The bytes to sign. The prefix keeps other signatures from passing as one of a token."""
    return _DOMAIN + payload


def read_payload(payload: bytes) -> JobToken:
    """Parse a token; every field must be present, of its type, and no other.

    Raises `BadJobToken`.
    """
    try:
        token = read_fields(read_json(payload), JobToken)
    except ValueError as error:
        raise BadJobToken(f"not a token of a job: {error}") from None
    if not _ID.fullmatch(token.id) or not token.user or token.attempt < 1 or token.job_id < 1:
        raise BadJobToken("a field is malformed")
    return token
