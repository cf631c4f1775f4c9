"""The address in gRPC's text for a peer."""

from __future__ import annotations

import pytest

from lattice.base.caller_address import address_of_peer


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:[fd00::1]:4711", "fd00::1"),
        ("ipv6:%5Bfd00::1%5D:4711", "fd00::1"),
        ("unix:/run/socket", ""),
        ("", ""),
    ],
)
def test_the_address_of_a_peer(peer: str, address: str) -> None:
    assert address_of_peer(peer) == address
