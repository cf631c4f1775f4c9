"""The network address that a call came from, for its handler. Set where calls are admitted."""

from __future__ import annotations

from contextvars import ContextVar
from urllib.parse import unquote

_ADDRESS: ContextVar[str] = ContextVar("lattice_caller_address", default="")


def caller_address() -> str:
    """The IP address of this call's sender, a proxy's if there is one; empty if unknown."""
    return _ADDRESS.get()


def set_caller_address(address: str) -> None:
    """For the task that handles the call."""
    _ADDRESS.set(address)


def address_of_peer(peer: str) -> str:
    """The IP address in gRPC's text, such as `ipv4:10.0.0.1:4711`; empty for a unix socket."""
    family, _, rest = unquote(peer).partition(":")
    if family not in {"ipv4", "ipv6"}:
        return ""
    return rest.rpartition(":")[0].strip("[]")
