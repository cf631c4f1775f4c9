"""The agents' listener: what a certificate opens, and that it opens nothing for people."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from lattice.adapters.pki.authority import ClusterAuthority
from lattice.base.clock import SystemClock
from lattice.base.errors import LatticeError, PermissionRefused
from lattice.domain.peer import PeerIdentity
from lattice.wire.guard import declared_permissions
from lattice.wire.peerguard import KINDS, PeerGuard
from tests.fakes.certificates import CLUSTER, DAY, node_pair


class _Context:
    def __init__(self, certificate: bytes) -> None:
        self._certificate = certificate

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        return {"x509_pem_cert": (self._certificate,)}

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"


def _believe(_: PeerIdentity) -> None:
    pass


def _refused(_: str, __: str, ___: LatticeError) -> None:
    pass


def _defect(_: str, error: BaseException) -> None:
    raise error


@pytest.mark.spec("AUTH-6", "AUTH-9")
@pytest.mark.threat("authority-key", "node-key")
async def test_no_certificate_of_the_authority_opens_a_call_for_people() -> None:
    authority = ClusterAuthority.create(CLUSTER, SystemClock())
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    shown = {
        "AGENT": node_pair(authority, "n1").certificate,
        "REPLICA": authority.certify_replica(key, "r1", ["127.0.0.1"], DAY).pem,
    }
    guard = PeerGuard(declared_permissions(), _believe, _refused, _defect)
    admitted: dict[str, set[str]] = {kind: set() for kind in shown}
    for rpc in declared_permissions():
        for kind, certificate in shown.items():
            try:
                await guard.admit(rpc, _Context(certificate))  # type: ignore[arg-type]
            except PermissionRefused:
                continue
            admitted[kind].add(rpc)
    for kind in KINDS:
        assert admitted[kind] == {
            rpc for rpc, needed in declared_permissions().items() if needed == kind
        }
    assert admitted["AGENT"]
    assert admitted["REPLICA"]
