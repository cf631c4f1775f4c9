"""Finds programs. `shutil.which` would also import every archive module."""

from __future__ import annotations

import os
from pathlib import Path


def find_program(name: str, folders: str) -> Path | None:
    """The first executable file; `folders` has the format of PATH."""
    for folder in folders.split(":"):
        file = Path(folder, name)
        if file.is_file() and os.access(file, os.X_OK):
            return file
    return None
