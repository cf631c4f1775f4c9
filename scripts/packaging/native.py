"""Debian and RPM packages, written by nfpm."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from scripts.packaging.command import INFRA, MACHINES, commit_time, run, tool, version
from scripts.packaging.manual import completion, manual
from scripts.packaging.parts import LICENCE, Part, configuration, deploy_scripts, shared_files
from scripts.packaging.python_tree import NEWEST_GLIBC, PREFIX, PythonTree

FORMATS = ("deb", "rpm")
_STEPS = ("postinstall", "preremove", "postremove")
_COMPLETION = {
    "bash": ("/usr/share/bash-completion/completions/lattice", None),
    "fish": ("/usr/share/fish/vendor_completions.d/lattice.fish", None),
    "zsh": ("/usr/share/zsh/vendor-completions/_lattice", "deb"),
    "zsh ": ("/usr/share/zsh/site-functions/_lattice", "rpm"),
}
Entry = dict[str, object]


def package_part(
    part: Part, tree: Path, out: Path, formats: tuple[str, ...], machine: str, python: PythonTree
) -> None:
    """The packages of one part, from its tree."""
    glibc = ".".join(str(each) for each in NEWEST_GLIBC)
    needed = f"lattice-python (>= {python.version})"
    # A daemon has a user of its own, which either of these makes.
    users = ["passwd | systemd"] if part.units else []
    described = _described(part.name, part.summary, machine)
    described |= {
        "version": version(),
        "release": "1",
        "contents": _contents(part, tree),
        "scripts": {step: str(file) for step in _STEPS if (file := part.file(step))},
        "overrides": {
            "deb": {
                "depends": [needed, f"libc6 (>= {glibc})", "libstdc++6", "libgcc-s1", *users],
            },
            "rpm": {
                "depends": [
                    f"lattice-python >= {python.version}",
                    f"libc.so.6(GLIBC_{glibc})(64bit)",
                    "libstdc++.so.6()(64bit)",
                    "libgcc_s.so.1()(64bit)",
                    *(["systemd"] if part.units else []),
                ]
            },
        },
    }
    _write(described, tree, out, formats)


def package_python(
    python: PythonTree, tree: Path, out: Path, formats: tuple[str, ...], machine: str
) -> None:
    """The package of the Python that the others share."""
    glibc = ".".join(str(each) for each in NEWEST_GLIBC)
    shared = "/usr/share/doc/lattice-python"
    described = _described("lattice-python", "Python for the programs of Lattice alone", machine)
    described |= {
        "license": "Python-2.0",
        "version": python.version,
        "release": python.revision,
        "contents": [
            *({"dst": each, "type": "dir"} for each in ("/opt/lattice", shared)),
            {"src": str(tree / PREFIX), "dst": f"/{PREFIX}", "type": "tree"},
            {"src": str(python.folder / "copyright"), "dst": f"{shared}/copyright"},
            {"src": str(python.folder / "sources"), "dst": f"{shared}/sources"},
        ],
        "overrides": {
            "deb": {
                "depends": [f"libc6 (>= {glibc})"],
                "recommends": ["ca-certificates", "tzdata"],
            },
            "rpm": {
                "depends": [f"libc.so.6(GLIBC_{glibc})(64bit)"],
                "recommends": ["ca-certificates", "tzdata"],
            },
        },
    }
    _write(described, tree, out, formats)


def _described(name: str, summary: str, machine: str) -> Entry:
    return {
        "name": name,
        "arch": MACHINES[machine],
        "section": "admin",
        "maintainer": "Lattice <lattice@localhost>",
        "vendor": "Lattice",
        "description": summary,
        "license": "Apache-2.0",
        "rpm": {"group": "System/Monitoring", "compression": "xz", "buildhost": "localhost"},
        "deb": {"compression": "xz"},
    }


def _contents(part: Part, tree: Path) -> list[Entry]:
    shared = f"/usr/share/doc/{part.name}"
    found: list[Entry] = [
        *({"dst": each, "type": "dir"} for each in ("/etc/lattice", shared)),
        {"src": str(tree / part.home), "dst": f"/{part.home}", "type": "tree"},
        {"src": str(LICENCE), "dst": f"{shared}/copyright"},
    ]
    for program in part.programs:
        if program.link:
            target = f"/{part.home}/bin/{program.name}"
            found.append({"src": target, "dst": program.link, "type": "symlink"})
            page = tree / f"{program.name}.{program.manual}.gz"
            page.write_bytes(gzip.compress(manual(program.name).encode(), mtime=0))
            found.append(_plain(page, f"/usr/share/man/man{program.manual}/{page.name}"))
    units = "/usr/lib/systemd/system"
    found += [_plain(INFRA / "systemd" / each, f"{units}/{each}") for each in part.units]
    for kind in ("sysusers", "tmpfiles"):
        file = part.file(kind)
        found += [_plain(file, f"/usr/lib/{kind}.d/{part.name}.conf")] if file else []
    if settings := configuration(part):
        file, target = settings
        found.append(_plain(file, target) | {"type": "config|noreplace"})
    found += [
        _plain(INFRA.parent / "config" / each, f"{shared}/examples/{each}") for each in part.samples
    ]
    if part.samples:
        found.append({"dst": f"{shared}/examples", "type": "dir"})
    if part.folder == "server":
        found.append({"dst": "/usr/share/lattice", "type": "dir"})
        for name, files in shared_files().items():
            folder = f"/usr/share/lattice/{name}"
            found.append({"dst": folder, "type": "dir"})
            found += [_plain(each, f"{folder}/{each.name}") for each in files]
        found += _deployment()
    if part.folder == "cli":
        found += _completions(tree)
    return found


def _deployment() -> list[Entry]:
    """Scripts and the Ansible role, for those who have packages and no checkout."""
    shared = "/usr/share/lattice"
    found: list[Entry] = [{"dst": f"{shared}/deploy", "type": "dir"}]
    for each in deploy_scripts():
        entry = _plain(each, f"{shared}/deploy/{each.name}")
        found.append(entry | {"file_info": {"mode": 0o755}})
    found.append({"src": str(INFRA / "ansible"), "dst": f"{shared}/ansible", "type": "tree"})
    return found


def _completions(tree: Path) -> list[Entry]:
    found = []
    for shell, (target, packager) in _COMPLETION.items():
        script = tree / f"completion.{shell.strip()}"
        script.write_text(completion(shell.strip()))
        found.append(_plain(script, target) | ({"packager": packager} if packager else {}))
    return found


def _plain(source: Path, target: str) -> Entry:
    return {"src": str(source), "dst": target, "file_info": {"mode": 0o644}}


def _write(described: Entry, tree: Path, out: Path, formats: tuple[str, ...]) -> None:
    made = commit_time()
    for each in (tree, *tree.rglob("*")):
        os.utime(each, (int(made), int(made)), follow_symlinks=False)
    file = tree.with_suffix(".json")
    file.write_text(json.dumps(described))
    # nfpm follows links from where it runs and writes a folder for a link to one. From so deep
    # inside the tree, links lead to nothing.
    inside = tree.with_suffix(".cwd") / "a" / "b" / "c" / "d"
    inside.mkdir(parents=True)
    for form in formats:
        run(
            *(tool("nfpm"), "package", "-f", file, "-p", form, "-t", out.resolve()),
            cwd=inside,
            env={**os.environ, "SOURCE_DATE_EPOCH": made},
        )
