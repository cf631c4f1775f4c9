"""Fresh roots of Debian's releases, in which packages are installed as on a machine."""

from __future__ import annotations

import fcntl
import os
import subprocess
from hashlib import sha256
from pathlib import Path

from lab.slurm_root import KEYS, mirror
from scripts.packaging.command import CACHE

_INCLUDED = ("ca-certificates", "passwd")


class PackageRoot:
    """A root with the essential packages, and what a test puts into it."""

    def __init__(self, suite: str, folder: Path, *more: str) -> None:
        """`more` are packages of the distribution beside the essential ones."""
        folder.mkdir()
        subprocess.run(["tar", "-xf", _archive(suite, more), "-C", folder], check=True)
        self.folder = folder

    def run(self, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command inside, with its own processes and this environment alone."""
        outside = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.folder}/proc"]
        return subprocess.run(
            [*outside, "chroot", str(self.folder), *argv],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def output(self, *argv: str, **environment: str) -> str:
        """What a command prints; it has to succeed."""
        done = self.run(*argv, **environment)
        assert done.returncode == 0, (argv, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout


def _archive(suite: str, more: tuple[str, ...]) -> Path:
    """Made once, and kept outside the checkout."""
    included = (*_INCLUDED, *more)
    name = sha256(repr((suite, included)).encode()).hexdigest()[:8]
    archive = CACHE / f"trial-{suite}-{name}.tar"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"trial-{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            partial = archive.with_suffix(".partial.tar")
            subprocess.run(
                [
                    *("mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(included)}"),
                    "--aptopt=Acquire::Check-Valid-Until false",
                    *(suite, str(partial), f"deb [signed-by={KEYS}] {mirror()} {suite} main"),
                ],
                check=True,
                env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
            )
            partial.rename(archive)
    return archive
