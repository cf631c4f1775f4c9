"""The Python that all packages share: built from Debian's source in a root of an old release.

The root and what was built in it stay in a cache outside the checkout. Their names change with what
they are made of; security fixes of the source packages come with `--renew-python`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from lab.slurm_root import KEYS, mirror
from scripts.packaging.command import CACHE, INFRA, BuildError, run

OLDEST_SUITE = "bullseye"
"""Its C library, 2.31, is the oldest that packages need."""
NEWEST_GLIBC = (2, 31)
_SOURCE_SUITE = "trixie"
_SOURCES = ("python3.13", "openssl")
MINOR = "3.13"
_INCLUDED = (
    *("build-essential", "patchelf", "pkg-config", "perl"),
    *("libffi-dev", "libsqlite3-dev", "libedit-dev", "libncurses-dev", "zlib1g-dev"),
    *("libbz2-dev", "liblzma-dev", "uuid-dev"),
)
_BUNDLED = (
    *("libffi7", "libsqlite3-0", "libedit2", "libbsd0", "libmd0", "libncursesw6", "libtinfo6"),
    *("zlib1g", "libbz2-1.0", "liblzma5", "libuuid1"),
)
_RECIPE = INFRA / "packages" / "python" / "build"
PREFIX = "opt/lattice/python"


@dataclass(frozen=True, slots=True)
class PythonTree:
    """One build of it. `folder` holds `opt/lattice/python`, `sources` and `copyright`."""

    folder: Path

    @property
    def program(self) -> Path:
        """It runs on the machine that built it, too."""
        return self.folder / PREFIX / "bin" / f"python{MINOR}"

    @property
    def sources(self) -> dict[str, str]:
        """The versions of what it was built from."""
        lines = (self.folder / "sources").read_text().splitlines()
        return dict(line.split(" ", 1) for line in lines)

    @property
    def version(self) -> str:
        """Python's own version."""
        return self.sources["python3.13"].partition("-")[0]

    @property
    def revision(self) -> str:
        """Debian's revision of it, and of OpenSSL, as the release of a package."""
        python = self.sources["python3.13"].partition("-")[2]
        openssl = self.sources["openssl"].partition("-")[0]
        return f"{python}.ssl{openssl}".replace("~", ".").replace("-", ".")


def python_tree(*, renew: bool = False) -> PythonTree:
    """The newest build for this recipe; make it if there is none, which takes ten minutes."""
    if os.geteuid() != 0:
        raise BuildError("the build makes a root file system: run it as root")
    parts = (OLDEST_SUITE, _SOURCE_SUITE, _SOURCES, _INCLUDED, _RECIPE.read_text())
    name = f"python-{os.uname().machine}-{sha256(repr(parts).encode()).hexdigest()[:12]}"
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (CACHE / "python.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = CACHE / name
        if renew or not made.is_dir():
            fresh = CACHE / f"{name}.partial"
            shutil.rmtree(fresh, ignore_errors=True)
            _build(fresh)
            shutil.rmtree(made, ignore_errors=True)
            fresh.rename(made)
        return PythonTree(made)


def _build(result: Path) -> None:
    root = CACHE / "python-root"
    shutil.rmtree(root, ignore_errors=True)
    _make_root(root)
    work = root / "build"
    shutil.copy(_RECIPE, work / "build")
    outside = ("unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc")
    inside = ("chroot", root, "/bin/sh", "-c")
    run(*outside, *inside, "/build/build /build", stdout=None)
    _note_sources(root, result)
    (result / "opt/lattice").mkdir(parents=True)
    (root / PREFIX).rename(result / PREFIX)
    shutil.rmtree(root)


def _make_root(root: Path) -> None:
    """A root with the compiler, and the unpacked source packages in its folder `build`."""
    source = f"deb-src [signed-by={KEYS}] {mirror()} {_SOURCE_SUITE} main"
    fetch = f"cd /build && apt-get -qq source --only-source {' '.join(_SOURCES)}"
    run(
        *("mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(_INCLUDED)}"),
        # An old release gets no new dates.
        "--aptopt=Acquire::Check-Valid-Until false",
        "--aptopt=APT::Sandbox::User root",
        # Its own keys are older than the release that the sources are of.
        '--setup-hook=mkdir -p "$1/usr/share/keyrings" "$1/build"',
        f'--customize-hook=cp {KEYS} "$1{KEYS}"',
        f'--customize-hook=echo "{source}" >"$1/etc/apt/sources.list.d/sources.list"',
        '--customize-hook=cp /etc/resolv.conf "$1/etc/resolv.conf"',
        '--customize-hook=chroot "$1" apt-get -qq update',
        f"--customize-hook=chroot \"$1\" sh -c '{fetch} >/dev/null'",
        *(OLDEST_SUITE, root, f"deb [signed-by={KEYS}] {mirror()} {OLDEST_SUITE} main"),
    )


def _note_sources(root: Path, result: Path) -> None:
    """What it was built from, and the licences of all of that."""
    result.mkdir()
    lines, licences = [], []
    for name in _SOURCES:
        (folder,) = (each for each in (root / "build").glob(f"{name}-*") if each.is_dir())
        changes = (folder / "debian/changelog").read_text()
        lines.append(f"{name} {changes.partition('(')[2].partition(')')[0]}")
        licences.append(f"# {name}\n\n{(folder / 'debian/copyright').read_text()}")
    for name in _BUNDLED:
        shown = run("chroot", root, "dpkg-query", "-W", "-f", "${Version}", name)
        lines.append(f"{name} {shown}")
        licences.append(f"# {name}\n\n{(root / 'usr/share/doc' / name / 'copyright').read_text()}")
    (result / "sources").write_text("\n".join(lines) + "\n")
    (result / "copyright").write_text("\n\n".join(licences))
