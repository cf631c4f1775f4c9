"""How the agent reaches the guest of a slice, from its configuration."""

from __future__ import annotations

from lattice.adapters.guest_ssh import BadGuest, GuestAddress, host_and_port
from lattice.agent.sections import SliceSection


def guest_address(section: SliceSection) -> GuestAddress:
    """How to reach the guest of a slice. Raises `BadGuest`."""
    host, port = host_and_port(section.address)
    if not section.gpus or len(set(section.gpus)) != len(section.gpus):
        raise BadGuest("gpus names none, or one twice")
    return GuestAddress(
        name=section.name,
        host=host,
        port=port,
        user=section.user,
        key_file=section.key_file,
        host_key=section.host_key,
        timeout_s=section.timeout_s,
    )
