"""The peer on the machines' own wire: a node or a replica, as its certificate names it. Pure.

A certificate of the cluster's authority has one URI, `lattice://CLUSTER/node/NAME` or
`lattice://CLUSTER/replica/ID`. `lattice.wire.peerguard` extracts it from a certificate. This module
handles the names alone, and refuses every spelling except the one it writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

SCHEME = "lattice"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_CLUSTER = re.compile(r"[a-z0-9][a-z0-9-]{0,47}", re.ASCII)
_URI = re.compile(r"lattice://([^/]+)/(node|replica)/([^/]+)", re.ASCII)


class BadName(ValueError):
    """Not a valid name on this wire; the text gives the reason."""


class PeerKind(StrEnum):
    """What a certificate can identify."""

    NODE = "node"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """The holder of a certificate of the cluster's authority, or of a SPIFFE trust domain."""

    kind: PeerKind
    name: str
    cluster: str
    serial: int
    not_before: datetime
    not_after: datetime
    generation: int = 0
    """Rises with each certificate of a node; 0 for one that was made elsewhere."""
    spiffe_id: str = ""
    """Set if a SPIFFE trust domain signed the certificate, not the cluster's authority."""

    @property
    def uri(self) -> str:
        return self.spiffe_id or peer_uri(self.cluster, self.kind, self.name)


@dataclass(frozen=True, slots=True)
class Issued:
    """A new certificate in PEM."""

    pem: bytes
    serial: int
    not_after: datetime


def checked_name(name: str) -> str:
    """The name of a node or a replica, as given; raises `BadName`."""
    if not _NAME.fullmatch(name):
        raise BadName(
            f"{name[:80]!r} is no name of a node: letters, digits, '.', '_' and '-', at most 63"
        )
    return name


def checked_cluster(cluster: str) -> str:
    """The id of a cluster, as given; raises `BadName`."""
    if not _CLUSTER.fullmatch(cluster):
        raise BadName(
            f"{cluster[:80]!r} is no id of a cluster: small letters, digits and '-', at most 48"
        )
    return cluster


def peer_uri(cluster: str, kind: PeerKind, name: str) -> str:
    """The URI of a certificate's holder; raises `BadName`."""
    return f"{SCHEME}://{checked_cluster(cluster)}/{kind.value}/{checked_name(name)}"


def read_uri(uri: str) -> tuple[str, PeerKind, str]:
    """Parse exactly what `peer_uri` writes into cluster, kind and name; raises `BadName`."""
    found = _URI.fullmatch(uri)
    if found is None:
        raise BadName("the certificate names neither a node nor a replica")
    cluster, kind, name = found.groups()
    return checked_cluster(cluster), PeerKind(kind), checked_name(name)


def server_name(cluster: str, replica: str = "") -> str:
    """The name that a client expects in a replica's certificate, at any address.

    Only replicas have certificates for serving, so the shared name proves "a replica of this
    cluster". With `replica` it proves that replica. An address proves less and changes more often.
    """
    base = f"replicas.{checked_cluster(cluster)}.lattice.internal"
    return f"{checked_name(replica).lower()}.{base}" if replica else base
