"""The releases of Slurm a lab can have, and the root file systems that hold the newer ones.

The machine's own release runs as it is. Another release needs another libc, so its daemons, its
commands and whatever calls these run inside a root of their own. A root is made once from the
distribution's packages and kept outside every lab. It brings engines of the same age.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from lab.command import LabError, run

ROOTS = Path("/var/cache/lattice-lab/roots")
OWN_RELEASE = "22.05"
"""The release of the machine's own distribution."""
_SUITES = {"24.11": "trixie", "26.05": "forky"}
RELEASES = (OWN_RELEASE, *_SUITES)
NEWEST_RELEASE = RELEASES[-1]

_PACKAGES = (
    # the scheduler and its accounting
    *("slurmctld", "slurmd", "slurmdbd", "slurmrestd", "slurm-client", "slurm-wlm-basic-plugins"),
    *("slurm-wlm-plugins", "slurm-wlm-jwt-plugin", "munge", "mariadb-server"),
    # agreement and metrics
    *("etcd-server", "etcd-client", "victoria-metrics"),
    # what nodes and people use
    *("python3", "python3-venv", "procps", "iproute2", "util-linux", "mount", "kmod"),
    *("hostname", "bsdutils", "squashfs-tools", "nftables", "less", "netbase", "curl"),
    *(
        "vim-tiny",
        "htop",
        "e2fsprogs",
        "openssh-client",
        "libbpf1",
        "libfaketime",
        "ca-certificates",
    ),
    # what the machine's own Python loads
    *("libreadline8t64", "libsqlite3-0", "libffi8", "libbz2-1.0", "liblzma5", "libncurses6"),
)
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""Of every release of Debian, also of later ones than this machine's."""
_SOURCES = Path("/etc/apt")


@dataclass(frozen=True, slots=True)
class SlurmRoot:
    """The root of one release."""

    release: str

    @property
    def folder(self) -> Path:
        """Its name changes with what it is made of."""
        made_of = sha256(repr((_SUITES[self.release], _PACKAGES)).encode()).hexdigest()[:8]
        return ROOTS / f"{self.release}-{made_of}"

    def ensure(self) -> None:
        """Make it if it is missing. That takes about two minutes."""
        ROOTS.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (ROOTS / f"{self.release}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.folder.is_dir():
                self._make()

    def _make(self) -> None:
        partial = self.folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        suite = _SUITES[self.release]
        run(
            [
                *("mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(_PACKAGES)}"),
                # A suite that is still in the making may have a date that is past.
                "--aptopt=Acquire::Check-Valid-Until false",
                *(suite, str(partial), f"deb [signed-by={KEYS}] {mirror()} {suite} main"),
            ],
            timeout_s=900,
        )
        for old in ROOTS.glob(f"{self.release}-????????"):
            shutil.rmtree(old)
        partial.rename(self.folder)


def default_release() -> str:
    """The newest; LATTICE_LAB_SLURM names another."""
    return os.environ.get("LATTICE_LAB_SLURM") or NEWEST_RELEASE


def default_authentication() -> str:
    """MUNGE; LATTICE_LAB_AUTH names another."""
    return os.environ.get("LATTICE_LAB_AUTH") or "munge"


def slurm_root(release: str) -> SlurmRoot | None:
    """The root of a release; None for the machine's own. Raises `LabError`."""
    if release not in RELEASES:
        raise LabError(f"no such release of Slurm: {release}; there are {', '.join(RELEASES)}")
    return None if release == OWN_RELEASE else SlurmRoot(release)


def mirror() -> str:
    """Where this machine gets its own packages."""
    for file in sorted(_SOURCES.glob("sources.list.d/*.sources")):
        for line in file.read_text().splitlines():
            if line.startswith("URIs:"):
                return line.split()[1]
    for file in (_SOURCES / "sources.list", *sorted(_SOURCES.glob("sources.list.d/*.list"))):
        for line in file.read_text().splitlines() if file.exists() else ():
            words = [word for word in line.split() if not word.startswith(("[", "signed-by"))]
            if words[:1] == ["deb"]:
                return words[1]
    raise LabError("this machine has no source of packages")
