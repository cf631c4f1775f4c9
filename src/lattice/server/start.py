"""The program `lattice-server`. Imports nothing that may be missing."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lattice.base.daemon import start
from lattice.base.malloc import NotOverwriting, overwrite_freed_memory

_DEFAULT = "/etc/lattice/server.yaml"
_SENSITIVE = re.compile(r"\bkind[\"']?\s*:\s*[\"']?sensitive\b")


def main() -> int:
    """Run it, or tell what to install."""
    # The server does this once it knows its configuration. Now it costs nothing: no part of the
    # program was imported, so none is imported twice.
    if seems_sensitive(sys.argv[1:]):
        with suppress(NotOverwriting):
            overwrite_freed_memory()
    return start("lattice.server.main", "lattice-server", "server")


def seems_sensitive(arguments: Sequence[str]) -> bool:
    """True if the file of the configuration seems to have a vCluster for sensitive work."""
    file = _DEFAULT
    for name, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if name == "--config":
            file = value
        elif name.startswith("--config="):
            file = name.partition("=")[2]
    with suppress(OSError, ValueError):
        return _SENSITIVE.search(Path(file).read_text(encoding="utf-8")) is not None
    return False
