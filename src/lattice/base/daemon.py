"""Starts a daemon: checks that its parts are installed, before anything imports them."""

from __future__ import annotations

import importlib
import os
import sys

_EXIT_NOT_INSTALLED = 78


def start(module: str, program: str, extra: str) -> int:
    """Run `main` of a module, or tell which extra of the package to install."""
    # gRPC's library writes lines of its own form to stderr; what matters comes as an error, too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "lattice"}:
            raise
        sys.stderr.write(
            f"{program} can't start: the Python package {missing} is not installed.\n"
            f"Hint: pip install 'lattice-hpc[{extra}]'\n"
        )
        return _EXIT_NOT_INSTALLED
    code: int = main()
    return code
