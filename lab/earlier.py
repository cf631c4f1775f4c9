"""Earlier releases of Lattice, each in an environment of its own, to run beside this checkout's.

No release has been tagged yet, so two commits stand for the two before this one. Their packages
have all one version; here each gets one by which people and doctor can tell them apart. The sources
come from the history of this checkout, the packages from their own lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from lab.command import LabError, run

RELEASES = Path("/var/cache/lattice-lab/releases")
_CHECKOUT = Path(__file__).resolve().parents[1]
_VERSION_FILE = Path("src/lattice/__init__.py")
_MADE_BY = "2"
"""Changes with how an environment is made."""


@dataclass(frozen=True)
class Earlier:
    """A release that agents and servers may still have."""

    name: str
    commit: str
    version: str

    @property
    def python(self) -> Path:
        """What runs it; `ensure` makes it."""
        return self._folder / "venv" / "bin" / "python"

    @property
    def tree(self) -> Path:
        return self._folder / "tree"

    def program(self, name: str) -> Path:
        """One of its commands, such as `lattice`."""
        return self.python.parent / name

    @property
    def _folder(self) -> Path:
        made_of = f"{self.commit} {self.version} {_MADE_BY} {sys.version}"
        return RELEASES / f"{self.version}-{sha256(made_of.encode()).hexdigest()[:8]}"

    def ensure(self) -> None:
        """Make its environment if it is missing: a minute the first time."""
        RELEASES.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (RELEASES / f"{self.version}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self._folder / ".complete").exists():
                for old in RELEASES.glob(f"{self.version}-????????"):
                    shutil.rmtree(old)
                self._unpack()
                self._install()
                (self._folder / ".complete").touch()

    def _unpack(self) -> None:
        self.tree.mkdir(parents=True)
        archive = self.tree.with_suffix(".tar")
        # Git refuses a checkout of another user unless it is named.
        git = ["git", "-c", f"safe.directory={_CHECKOUT}", "-C", str(_CHECKOUT)]
        try:
            run([*git, "archive", "--output", str(archive), self.commit])
        except LabError as error:
            raise LabError(f"{self.commit[:8]} is not in the history here: {error}") from None
        run(["tar", "-xf", str(archive), "-C", str(self.tree)])
        archive.unlink()
        file = self.tree / _VERSION_FILE
        old = file.read_text()
        file.write_text(old.replace('__version__ = "0.1.0"', f'__version__ = "{self.version}"'))
        if file.read_text() == old:
            raise LabError(f"{self.commit[:8]} has another version than 0.1.0")

    def _install(self) -> None:
        run([str(self.tree / "ebpf" / "build")], timeout_s=120, check=False)
        run([sys.executable, "-m", "venv", "--without-pip", str(self._folder / "venv")])
        uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(self.python)]
        lock = self.tree / "requirements" / "dev.txt"
        run([*uv, "--require-hashes", "-r", str(lock)], timeout_s=900)
        run([*uv, "--no-deps", "--no-build-isolation", str(self.tree)], timeout_s=300)
        # Compiled here, because the people of a lab may not write there. Some packages carry files
        # that are no Python on purpose.
        compiled = [str(self.python), "-m", "compileall", "-q", "-j", "0"]
        subprocess.run([*compiled, str(self._folder / "venv" / "lib")], check=False, env=os.environ)


EARLIER = (
    Earlier("n-1", "fdb0da06a0e2dddc82507acc783ed8b5e01e3819", "0.0.2"),
    Earlier("n-2", "93fb0a14a08d6b78b07080e2bd51da6a2034293e", "0.0.1"),
)
"""The release before this one, and the one before that. With a new release, its tag goes first."""
LAST = EARLIER[0]


def earlier(name: str) -> Earlier:
    """The release of this name, with its environment made."""
    found = next((each for each in EARLIER if each.name == name), None)
    if found is None:
        raise LabError(f"no release {name}; there are {', '.join(each.name for each in EARLIER)}")
    found.ensure()
    return found
