"""The Python that runs Lattice in a lab: the machine's own, or that of a root.

A virtual environment of the root's Python is made once for each set of packages. `uv` of this
machine installs into it; the package itself is installed as a wheel, as on a site.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from hashlib import sha256
from pathlib import Path

from lab.command import LabError, run
from lab.slurm_root import SlurmRoot

PYTHONS = Path("/var/cache/lattice-lab/pythons")
RELEASES = {"3.13": "24.11", "3.14": "26.05"}
"""The release of Slurm whose root has this Python."""
LAB_PYTHON = Path(os.environ.get("LATTICE_LAB_PYTHON") or sys.executable)
"""Of servers, agents, helpers and people."""

_CHECKOUT = Path(__file__).resolve().parents[1]
_PROGRAMS = {
    "lattice": "lattice.cli.main",
    "lattice-server": "lattice.server.main",
    "lattice-agent": "lattice.agent.main",
    "lattice-helper": "lattice.helper.main",
}
_IN_ROOT = 'mount --bind "$2" "$1/mnt" && shift 2 && exec chroot "$0" "$@"'


class OtherPython:
    """A virtual environment with a Python of another version."""

    def __init__(self, version: str) -> None:
        if version not in RELEASES:
            raise LabError(f"no Python {version} here; there are {', '.join(RELEASES)}")
        self.version = version
        self.root = SlurmRoot(RELEASES[version])

    @property
    def executable(self) -> Path:
        return self._folder / "bin" / "python"

    @property
    def _folder(self) -> Path:
        """Its name changes with what is installed in it, apart from Lattice itself."""
        packages = (_CHECKOUT / "requirements" / "dev.txt").read_bytes()
        made_of = sha256(self.root.folder.name.encode() + packages).hexdigest()[:8]
        return PYTHONS / f"{self.version}-{made_of}"

    @property
    def _packages(self) -> Path:
        return self._folder / "lib" / f"python{self.version}" / "site-packages"

    def ensure(self) -> None:
        """Make it if it is missing, and install the checkout's Lattice in it."""
        self.root.ensure()
        PYTHONS.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (PYTHONS / f"{self.version}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self._folder / ".complete").exists():
                self._make()
            self._install("--no-deps", "--reinstall-package", "lattice-hpc", str(_CHECKOUT))
            # Compiled here, because the people of a lab may not write there.
            self._run("-m", "compileall", "-q", "-j", "0", f"/mnt/{self._folder.name}/lib")

    def _make(self) -> None:
        for old in PYTHONS.glob(f"{self.version}-????????"):
            shutil.rmtree(old)
        self._run("-m", "venv", "--without-pip", f"/mnt/{self._folder.name}")
        self._install("--require-hashes", "-r", str(_CHECKOUT / "requirements" / "dev.txt"))
        for name, module in _PROGRAMS.items():
            program = self._folder / "bin" / name
            program.write_text(
                f"#!{self.executable}\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
            )
            program.chmod(0o755)
        for program in (self._packages / "bin").iterdir():  # py-spy, for stacks
            beside = self._folder / "bin" / program.name
            if not beside.exists():
                beside.symlink_to(program)
        (self._folder / ".complete").touch()

    def _run(self, *words: str) -> None:
        """Run the root's Python, with the environments at /mnt."""
        root = str(self.root.folder)
        argv = ["unshare", "--mount", "sh", "-c", _IN_ROOT, root, root, str(PYTHONS)]
        done = run([*argv, f"/usr/bin/python{self.version}", *words], timeout_s=300, check=False)
        # Some packages carry files that are no Python on purpose.
        if done.returncode != 0 and "compileall" not in words:
            raise LabError(f"Python {self.version}: {done.stderr or done.stdout}")

    def _install(self, *words: str) -> None:
        uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python-version"]
        run([*uv, self.version, "--target", str(self._packages), *words], timeout_s=900)
