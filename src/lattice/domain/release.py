"""Releases of Lattice: which versions of server, agent and client may work together. Pure.

A release is the first two numbers of a version; the third counts its fixes. A server serves its own
release and the two before it. While servers are rolled back, agents and clients are one release
ahead of them, which works too. Further apart nothing was tried.
"""

from __future__ import annotations

import re
from enum import Enum, auto

MOST_BEHIND = 2
"""How many releases an agent or a client may be older than the server."""
MOST_AHEAD = 1
"""How many it may be newer."""
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})(?:[.+\-a-z]|$)", re.ASCII)
_MAJOR = 1_000_000
"""Releases are not counted across a change of the first number: that is always too far."""


class Fit(Enum):
    """What a version is to the server's."""

    FITS = auto()
    TOO_OLD = auto()
    TOO_NEW = auto()
    UNKNOWN = auto()
    """One of the two is not a version."""


def fit_of(version: str, server: str) -> Fit:
    """Whether an agent or a client of this version works with that server."""
    behind = releases_behind(version, server)
    if behind is None:
        return Fit.UNKNOWN
    if behind > MOST_BEHIND:
        return Fit.TOO_OLD
    return Fit.TOO_NEW if -behind > MOST_AHEAD else Fit.FITS


def releases_behind(version: str, other: str) -> int | None:
    """By how many releases `version` is older than `other`; negative if it is newer."""
    own, its = _release(version), _release(other)
    if own is None or its is None:
        return None
    return its - own


def agent_fault(version: str, server: str) -> str:
    """What is wrong with an agent of this version, and what to do; empty if nothing is."""
    match fit_of(version, server):
        case Fit.TOO_OLD:
            return (
                f"its version {version} is more than {MOST_BEHIND} releases older than the "
                f"server's ({server}). Install the server's version on the node"
            )
        case Fit.TOO_NEW:
            return (
                f"its version {version} is more than {MOST_AHEAD} release newer than the "
                f"server's ({server}). Upgrade the servers first, one by one"
            )
        case _:
            return ""


def _release(version: str) -> int | None:
    found = _VERSION.match(version)
    return int(found[1]) * _MAJOR + int(found[2]) if found else None
