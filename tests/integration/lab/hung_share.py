"""A FUSE share that answers nothing, for tests of the lab: whoever reads it can't be killed.

Its server runs outside every lab, so that ending a lab does not end it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.faulty_share import NAME

_CHECKOUT = Path(__file__).parents[3]


@contextmanager
def hung_share(folder: Path, enter: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a file on it. At the end whoever still waits for it gets an error.

    `enter` are words that enter the mount namespace in which the folder is to be covered.
    """
    program = [sys.executable, "-m", "tests.e2e.faulty_share", str(folder)]
    with subprocess.Popen(
        [*enter, "env", "-C", str(_CHECKOUT), *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        assert server.stdout.readline() == "mounted\n"
        server.stdin.write("never\n")
        server.stdin.flush()
        try:
            yield folder / NAME.decode()
        finally:
            server.stdin.close()
