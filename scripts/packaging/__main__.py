"""`scripts/package`: the deb and rpm packages of this checkout."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.packaging.command import ROOT, BuildError
from scripts.packaging.environment import build_wheel, constraints, environment
from scripts.packaging.native import FORMATS, package_part, package_python
from scripts.packaging.parts import PARTS
from scripts.packaging.python_tree import PREFIX, python_tree


def main() -> int:
    """Build what was asked for; by default everything."""
    options = _parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # As root builds it: files of packages belong to root and are readable by all.
    os.umask(0o022)
    formats = tuple(options.format or FORMATS)
    parts = options.part or ["python", *(part.folder for part in PARTS)]
    machine = os.uname().machine
    try:
        python = python_tree(renew=options.renew_python)
        with tempfile.TemporaryDirectory(prefix="lattice-package-") as folder:
            work = Path(folder)
            if "python" in parts:
                tree = work / "python"
                shutil.copytree(python.folder / PREFIX, tree / PREFIX, symlinks=True)
                package_python(python, tree, options.out, formats, machine)
            wheel, pinned = build_wheel(work), constraints(work)
            for part in PARTS:
                if part.folder in parts:
                    tree = work / part.name
                    environment(part, tree, python, wheel, pinned, machine)
                    package_part(part, tree, options.out, formats, machine, python)
                    shutil.rmtree(tree)
    except BuildError as error:
        sys.stderr.write(f"Can't build: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/package", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=ROOT / "dist", metavar="DIR")
    add("--format", action="append", choices=FORMATS, help="default: both")
    folders = ["python", *(part.folder for part in PARTS)]
    add("--part", action="append", choices=folders, help="default: all")
    add("--renew-python", action="store_true", help="fetch the sources and build Python anew")
    return parser


if __name__ == "__main__":
    sys.exit(main())
