"""The program `lattice-server`. Imports nothing that may be missing."""

from __future__ import annotations

from lattice.base.daemon import start


def main() -> int:
    """Run it, or tell what to install."""
    return start("lattice.server.main", "lattice-server", "server")
