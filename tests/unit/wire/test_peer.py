"""Who a certificate names: read strictly, or not at all."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.pki.authority import ClusterAuthority
from lattice.base.clock import SystemClock
from lattice.base.errors import LoginRequired, PermissionRefused
from lattice.domain.peer import PeerKind
from lattice.wire.peerguard import peer_of, read_peer
from tests.fakes.certificates import CLUSTER, DAY, node_pair, self_signed

URI = f"lattice://{CLUSTER}/node/n1"


class _Context:
    def __init__(self, *shown: bytes) -> None:
        self._shown = shown

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        return {"x509_pem_cert": self._shown} if self._shown else {}


@pytest.mark.spec("AUTH-9")
def test_a_node_and_a_replica_are_who_they_are() -> None:
    authority = ClusterAuthority.create(CLUSTER, SystemClock())
    node = peer_of(_Context(node_pair(authority, "n1").certificate))
    assert (node.kind, node.name, node.cluster, node.uri) == (PeerKind.NODE, "n1", CLUSTER, URI)
    assert node.not_before < SystemClock().now() < node.not_after
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    issued = authority.certify_replica(key, "r1", ["127.0.0.1"], DAY)
    replica = read_peer(issued.pem)
    assert (replica.kind, replica.name, replica.serial) == (PeerKind.REPLICA, "r1", issued.serial)


@pytest.mark.spec("AUTH-9")
def test_without_a_certificate_nobody_calls() -> None:
    with pytest.raises(LoginRequired):
        peer_of(_Context())


@pytest.mark.spec("AUTH-9")
@pytest.mark.parametrize(
    ("uris", "words"),
    [
        ((), "neither a node nor a replica"),
        ((URI, f"lattice://{CLUSTER}/node/n2"), "exactly one"),
        ((URI, "https://elsewhere"), "exactly one"),
        (("spiffe://x/node/n1",), "neither a node"),
        (("lattice://c/admin/root",), "neither a node"),
        (("lattice://c/node/a%2fb",), "no name of a node"),
    ],
)
def test_a_certificate_that_does_not_say_exactly_one_thing_is_refused(
    uris: tuple[str, ...], words: str
) -> None:
    with pytest.raises(PermissionRefused, match=words):
        read_peer(self_signed(uris).certificate)


@pytest.mark.spec("AUTH-9")
def test_an_authority_or_one_for_no_client_is_refused() -> None:
    with pytest.raises(PermissionRefused, match="authority"):
        read_peer(self_signed((URI,), authority=True).certificate)
    with pytest.raises(PermissionRefused, match="not made for a client"):
        read_peer(self_signed((URI,), usage=False).certificate)


@given(st.binary(max_size=300))
def test_no_bytes_do_more_than_be_refused(raw: bytes) -> None:
    for pem in (raw, b"-----BEGIN CERTIFICATE-----\n" + raw + b"\n-----END CERTIFICATE-----\n"):
        with pytest.raises(PermissionRefused):
            read_peer(pem)
