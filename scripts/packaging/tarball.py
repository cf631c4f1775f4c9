"""Archives for machines without dpkg and rpm: what the packages contain, from the root on."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from scripts.packaging.command import MACHINES, ROOT, commit_time, run, tool
from scripts.packaging.parts import PARTS, Part
from scripts.packaging.wheelhouse import PYTHONS

_PORTABLE = """\
#!/usr/bin/env -S python3 -I
import sys

if sys.version_info < (3, 11):
    sys.exit("lattice needs Python 3.11 or later; this is " + sys.version.partition(" ")[0])
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from lattice.cli.main import main

sys.exit(main())
"""


def tarballs(packages: Path, out: Path, work: Path, machine: str) -> None:
    """One for each part, made of its deb and that of the shared Python."""
    for part in PARTS:
        tree = work / f"tar-{part.name}"
        for name in ("lattice-python", part.name):
            (file,) = packages.glob(f"{name}_*_{MACHINES[machine]}.deb")
            run("dpkg-deb", "-x", file, tree)
        # Unpacked again over a machine that runs, it must not touch what a person changed.
        samples = tree / "usr/share/doc" / part.name / "examples" / "etc"
        if (tree / "etc/lattice").is_dir():
            shutil.copytree(tree / "etc/lattice", samples)
            shutil.rmtree(tree / "etc")
        _pack(tree, out / f"{part.name}-{machine}.tar.gz")
        shutil.rmtree(tree)


def portable_client(out: Path, work: Path, wheel: Path, pinned: Path) -> None:
    """The command line for arm64, on the machine's own Python, whichever from 3.11 on it is.

    Compiled modules carry the version of their Python in their names, so all stand side by side.
    """
    (part,) = (each for each in PARTS if each.folder == "cli")
    tree = work / "portable"
    home = tree / part.home
    for python in PYTHONS:
        target = work / f"portable-{python}"
        run(
            *(tool("uv"), "pip", "install", "-q", "--link-mode", "copy", "--only-binary", ":all:"),
            *("--python", ROOT / ".venv/bin/python", "--python-version", python),
            *("--python-platform", "aarch64-manylinux_2_28", "--target", target, "-c", pinned),
            f"lattice-hpc[{','.join(part.extras)}] @ file://{wheel}",
        )
        shutil.rmtree(target / "bin", ignore_errors=True)
        (target / ".lock").unlink(missing_ok=True)
        shutil.copytree(target, home / "lib", dirs_exist_ok=True)
    _start(home / "bin", part)
    _pack(tree, out / f"{part.name}-arm64.tar.gz")


def _start(folder: Path, part: Part) -> None:
    folder.mkdir()
    for program in part.programs:
        file = folder / program.name
        file.write_text(_PORTABLE)
        file.chmod(0o755)


def _pack(tree: Path, archive: Path) -> None:
    made = int(commit_time())

    def as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = made
        return entry

    with tarfile.open(archive, "w:gz", compresslevel=6) as file:
        for each in sorted(tree.iterdir()):
            file.add(each, each.name, filter=as_root)
