"""The public Python SDK: every verb of the CLI, typed, in an async and a blocking client.

    from lattice.client import SyncClient

    with SyncClient.from_environment() as lattice:
        for allocation in lattice.allocations().allocations:
            print(allocation.id, allocation.state)

`Client` is the same with `await`. Both use REST over TLS and need neither gRPC nor protobuf.
Importing this package loads nothing; each name loads on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lattice.client.async_client import Client
    from lattice.client.blocking_client import SyncClient
    from lattice.client.settings import Settings

__all__ = ["Client", "Settings", "SyncClient"]

_HOMES = {
    "Client": "lattice.client.async_client",
    "Settings": "lattice.client.settings",
    "SyncClient": "lattice.client.blocking_client",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
