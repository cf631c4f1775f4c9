"""The Python environment of one part, below /opt/lattice, as if it had been made there.

Nothing of the target runs while it is made, so it can be made for another architecture.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from scripts.packaging.command import ROOT, RUN, run, tool
from scripts.packaging.parts import Part
from scripts.packaging.python_tree import MINOR, PREFIX, PythonTree

_PLATFORM = "manylinux_2_28"
"""Wheels for this C library or an older one, and no builds from source."""
_START = """\
#!/{home}/bin/python3 -I
import sys

from {module} import {function}

sys.exit({function}())
"""


def build_wheel(work: Path) -> Path:
    """Lattice's own wheel, from this checkout."""
    python = ROOT / ".venv" / "bin" / "python"
    build = (python, "-m", "pip", "-q", "wheel", "--no-deps", "--no-build-isolation")
    run(*build, "-w", work, ROOT)
    return next(work.glob("lattice_hpc-*.whl"))


def build_run_wheel(work: Path) -> Path:
    """The wheel for the environments of training jobs, which needs nothing of Lattice's."""
    folder = work / "run"
    run(tool("python"), "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=RUN)
    return next(folder.glob("lattice_run-*.whl"))


def constraints(work: Path) -> Path:
    """The versions that the tests ran with."""
    text = (ROOT / "requirements" / "dev.txt").read_text()
    file = work / "constraints.txt"
    pins = re.findall(r"^[A-Za-z0-9._-]+==[^ ;\\]+(?: ; [^\\\n]+)?", text, re.MULTILINE)
    file.write_text("".join(f"{pin.strip()}\n" for pin in pins))
    return file


def environment(
    part: Part, tree: Path, python: PythonTree, wheel: Path, pinned: Path, machine: str
) -> None:
    """Make it in `tree/opt/lattice/…`."""
    home = tree / part.home
    packages = home / "lib" / f"python{MINOR}" / "site-packages"
    programs = home / "bin"
    programs.mkdir(parents=True)
    (programs / "python3").symlink_to(f"/{PREFIX}/bin/python{MINOR}")
    (programs / "python").symlink_to("python3")
    (home / "pyvenv.cfg").write_text(
        f"home = /{PREFIX}/bin\ninclude-system-site-packages = false\nversion = {python.version}\n"
    )
    run(
        *(tool("uv"), "pip", "install", "-q", "--link-mode", "copy", "--only-binary", ":all:"),
        *("--python", python.program, "--python-version", MINOR),
        *("--python-platform", f"{machine}-{_PLATFORM}", "--target", packages, "-c", pinned),
        *(f"lattice-hpc[{','.join(part.extras)}] @ file://{wheel}", *part.more),
    )
    _move_binaries(packages / "bin", programs)
    _tidy(packages, machine, for_kernel="agent" in part.extras)
    for program in part.programs:
        module, _, function = program.entry.partition(":")
        file = programs / program.name
        # Isolated: what people's modules put into PYTHONPATH must not get in here.
        file.write_text(_START.format(home=part.home, module=module, function=function))
        file.chmod(0o755)
    compiled = ("-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", tree, "-p", "/")
    run(python.program, "-I", "-m", "compileall", *compiled, packages)


def _move_binaries(installed: Path, programs: Path) -> None:
    """Keep what is no script: those start a Python that is not there."""
    for file in installed.iterdir() if installed.is_dir() else ():
        if file.read_bytes()[:4] == b"\x7fELF":
            file.rename(programs / file.name)
    shutil.rmtree(installed, ignore_errors=True)


def _tidy(packages: Path, machine: str, *, for_kernel: bool) -> None:
    (packages / ".lock").unlink(missing_ok=True)
    for direct in packages.glob("lattice_hpc-*/direct_url.json"):
        direct.unlink()
    for kind in ("*.pyi", "*.pyx", "*.pxd", "*.c", "*.h"):
        for file in packages.rglob(kind):
            file.unlink()
    for program in (packages / "lattice/helper").glob("*.bpf.o"):
        if machine not in program.name or not for_kernel:
            program.unlink()
    if machine == os.uname().machine:
        # Half of a wheel's library may be what a debugger reads.
        run("strip", "--strip-debug", *packages.rglob("*.so"))
