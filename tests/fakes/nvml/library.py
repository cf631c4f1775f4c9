"""The test's `libnvidia-ml.so.1` in this process, and in a fresh one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from lab.gpus import STATE


def load(library: Path) -> None:
    """Into this process, for good: whoever asks for the library by name finds this one."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def run_with(library: Path, state: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A fresh Python that finds the library as a node's agent does: on the library path."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), STATE: str(state)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
