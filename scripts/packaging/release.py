"""`scripts/release`: everything of one tag, with checksums that are signed."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.packaging.command import ROOT, RUN, BuildError, run, tool, version
from scripts.packaging.environment import build_run_wheel, build_wheel, constraints
from scripts.packaging.image import image
from scripts.packaging.python_tree import python_tree
from scripts.packaging.tarball import portable_client, tarballs
from scripts.packaging.wheelhouse import bill_of_materials, checksums, wheelhouse

NAMESPACE = "lattice-release"
"""What the signature is for, as ssh-keygen calls it."""


def main() -> int:
    """From a checkout: make one of the tag and start there. In that one: build."""
    options = _parser().parse_args()
    try:
        if options.inside:
            _build(options.out, options.renew_python)
        else:
            _release(options)
    except BuildError as error:
        sys.stderr.write(f"Can't release: {error}\n")
        return 1
    return 0


def _release(options: argparse.Namespace) -> None:
    if not options.key and not options.unsigned:
        raise BuildError("name the key that signs with --key FILE, or say --unsigned to try")
    out: Path = (options.out / options.tag).resolve()
    if out.exists():
        raise BuildError(f"{out} is there already; remove it first")
    commit = run("git", "-C", ROOT, "rev-parse", "--verify", f"{options.tag}^{{commit}}").strip()
    with tempfile.TemporaryDirectory(prefix="lattice-release-") as folder:
        source = Path(folder) / "source"
        run("git", "-C", ROOT, "worktree", "add", "-q", "--detach", source, commit)
        try:
            _check_lock(source)
            (source / ".venv").symlink_to(ROOT / ".venv")
            partial = out.with_name(f"{out.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            more = ["--renew-python"] if options.renew_python else []
            command = ("scripts.packaging.release", options.tag, "--inside", *more)
            environment = {**os.environ, "PYTHONPATH": f"{source}:{source}/src"}
            python = ROOT / ".venv/bin/python"
            run(python, "-m", *command, "--out", partial, cwd=source, env=environment, stdout=None)
            _sign(partial, options.key)
            partial.rename(out)
        finally:
            run("git", "-C", ROOT, "worktree", "remove", "--force", source)


def _check_lock(source: Path) -> None:
    lock = Path("requirements") / "dev.txt"
    if (source / lock).read_bytes() != (ROOT / lock).read_bytes():
        raise BuildError("the tag has another lock than this checkout: check the tag out first")


def _build(out: Path, renew_python: bool) -> None:
    tag = sys.argv[1].removeprefix("v")
    if tag != version():
        raise BuildError(f"the tag is of {tag}, the source of {version()}")
    os.umask(0o022)
    out.mkdir(parents=True)
    run(ROOT / "ebpf/build")
    _write_changelog(out)
    python = python_tree(renew=renew_python)
    with tempfile.TemporaryDirectory(prefix="lattice-artefacts-") as folder:
        work = Path(folder)
        run(ROOT / "scripts/package", "--out", out, stdout=None)
        run(tool("python"), "-m", "hatchling", "build", "-d", out, cwd=ROOT)
        run(tool("python"), "-m", "hatchling", "build", "-d", out, cwd=RUN)
        wheel, pinned = build_wheel(work), constraints(work)
        wheels = work / f"lattice-wheelhouse-{version()}"
        wheelhouse(wheels, work, (wheel, build_run_wheel(work)))
        (out / f"lattice-{version()}.cdx.json").write_text(
            bill_of_materials(wheels.glob("*.whl"), python.sources)
        )
        (wheels / "SHA256SUMS").write_text(checksums(wheels))
        run(
            "tar",
            "-C",
            work,
            "--owner=0",
            "--group=0",
            "-cf",
            out / f"{wheels.name}.tar",
            wheels.name,
        )
        tarballs(out, out, work, os.uname().machine)
        portable_client(out, work, wheel, pinned)
        image(out, out)
        shutil.copytree(ROOT / "infra/docker", out / "docker")


def _write_changelog(out: Path) -> None:
    """The changes of this release, made from the fragments unless the tag has them already."""
    fragments = [each for each in (ROOT / "changes").glob("*.md") if each.name != "README.md"]
    if fragments:
        run(tool("towncrier"), "build", "--yes", "--version", version(), cwd=ROOT)
    shutil.copy(ROOT / "CHANGELOG.md", out / "CHANGELOG.md")


def _sign(folder: Path, key: Path | None) -> None:
    sums = folder / "SHA256SUMS"
    sums.write_text(checksums(folder))
    if key is not None:
        try:
            subprocess.run(
                ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", NAMESPACE, sums], check=True
            )
        except subprocess.CalledProcessError:
            raise BuildError(f"{key} did not sign") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    add = parser.add_argument
    add("tag", help="of this repository; the name is the version, v0.1.0 or 0.1.0")
    add("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    add("--key", type=Path, metavar="FILE", help="a private key of ssh-keygen that signs")
    add("--unsigned", action="store_true", help="checksums alone, to try it")
    add("--renew-python", action="store_true", help="fetch the sources and build Python anew")
    add("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
