"""The text that a person encodes with MUNGE to sign in. Pure.

It names the cluster and the host that the person's client dialled. So a server that is given such a
credential can't use it at another one, and nobody's credential for something else is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice.domain.peer import checked_cluster

MUNGE = "munge"
"""The name of this way to sign in: as a flow, and as the issuer of stored tokens."""
_MARK = "lattice sign-in 1"
_TEXT = re.compile(rf"{_MARK} (\S{{1,48}}) (\S{{1,255}})", re.ASCII)


class BadClaim(ValueError):
    """The text is no claim."""


@dataclass(frozen=True, slots=True)
class MungeClaim:
    """Who encodes this signs in to one cluster, at one host."""

    cluster: str
    host: str

    def __str__(self) -> str:
        """The text to encode. Raises `BadName` for a cluster's name that is none."""
        return f"{_MARK} {checked_cluster(self.cluster)} {self.host}"

    @classmethod
    def parse(cls, text: str) -> MungeClaim:
        """Raises `BadClaim`."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise BadClaim("a MUNGE credential for something else")
        return cls(*found.groups())
