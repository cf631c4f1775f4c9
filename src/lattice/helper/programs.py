"""Finds programs. The standard library's way to do it would load every archiver with it."""

from __future__ import annotations

import os
from pathlib import Path


def find_program(name: str, folders: str) -> Path | None:
    """The first that can be run; `folders` as in PATH."""
    for folder in folders.split(":"):
        file = Path(folder, name)
        if file.is_file() and os.access(file, os.X_OK):
            return file
    return None
