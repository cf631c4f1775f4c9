"""Every wheel that Lattice needs, for sites without an index, and what is in them.

The wheels are those of the lock, checked against its hashes.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import tomllib
import uuid
import zipfile
from collections.abc import Iterable, Sequence
from email import message_from_string
from pathlib import Path

from scripts.packaging.command import ROOT, BuildError, commit_time, run, tool, version
from scripts.packaging.parts import PARTS

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_TAGS = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
_OLD_TAGS = ("manylinux2014", "manylinux2010", "manylinux1")
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==[^\n]*(?:\n    --hash=[^\n]*)*", re.MULTILINE)


def wheelhouse(folder: Path, work: Path, own: Sequence[Path], machine: str = "x86_64") -> None:
    """Fill a folder with the wheels of all extras, for each Python that Lattice runs on."""
    folder.mkdir(parents=True)
    for wheel in own:
        (folder / wheel.name).write_bytes(wheel.read_bytes())
    ours = {_name(wheel.name.partition("-")[0]) for wheel in own}
    locked = {_name(found[1]): found[0] for found in _LOCKED.finditer(_lock())}
    platforms = [f"manylinux_{tag}_{machine}" for tag in _TAGS]
    platforms += [f"{tag}_{machine}" for tag in _OLD_TAGS]
    for python in PYTHONS:
        wanted = work / f"wheels-{python}.txt"
        names = [each for each in _resolved(work, folder, python, machine) if each not in ours]
        if lacking := [name for name in names if name not in locked]:
            raise BuildError(f"the lock has no {', '.join(lacking)}: run scripts/lock")
        wanted.write_text("".join(_without_marker(locked[name]) + "\n" for name in names))
        abi = f"cp{python.replace('.', '')}"
        run(
            *(ROOT / ".venv/bin/python", "-m", "pip", "-q", "download", "--no-deps"),
            *("--require-hashes", "--only-binary", ":all:", "--python-version", python),
            *(word for each in platforms for word in ("--platform", each)),
            *("--implementation", "cp", "--abi", abi, "--abi", "abi3", "--abi", "none"),
            *("-r", wanted, "-d", folder),
        )
    _write_constraints(folder)


def bill_of_materials(wheels: Iterable[Path], sources: dict[str, str]) -> str:
    """CycloneDX of the wheels, and of the sources that the shared Python is built from."""
    components = {}
    for wheel in sorted(wheels):
        found = _metadata(wheel)
        name = _name(found["Name"])
        entry = components.setdefault(
            name,
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{found['Version']}",
                "name": name,
                "version": found["Version"],
                "purl": f"pkg:pypi/{name}@{found['Version']}",
                "licenses": [{"license": {"name": _licence(found)}}],
                "properties": [],
            },
        )
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        entry["properties"].append({"name": f"sha256:{wheel.name}", "value": digest})
    debian = [
        {
            "type": "library",
            "bom-ref": f"pkg:deb/debian/{name}@{shown}",
            "name": name,
            "version": shown,
            "purl": f"pkg:deb/debian/{name}@{shown}",
        }
        for name, shown in sources.items()
    ]
    listed = [*components.values(), *debian]
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(listed, sort_keys=True))
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(commit_time())))
    about = {"type": "application", "name": "lattice-hpc", "version": version()}
    return json.dumps(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{serial}",
            "version": 1,
            "metadata": {"timestamp": made, "component": about},
            "components": listed,
        },
        indent=1,
    )


def checksums(folder: Path) -> str:
    """A line for each file below, as sha256sum reads it."""
    lines = []
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        lines.append(f"{digest}  {file.relative_to(folder)}\n")
    return "".join(lines)


def _resolved(work: Path, own: Path, python: str, machine: str) -> list[str]:
    """The names of all distributions that any part of Lattice needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [word for each in project["optional-dependencies"] for word in ("--extra", each)]
    pinned, more = work / "constraints.txt", work / "more.txt"
    more.write_text("".join(f"{name}\n" for part in PARTS for name in part.more))
    files = (ROOT / "pyproject.toml", more)
    text = run(
        *(tool("uv"), "pip", "compile", "-q", *files, *extras, "-c", pinned),
        *("--no-header", "--no-annotate", "--no-emit-index-url", "--python-version", python),
        *("--python-platform", f"{machine}-manylinux_2_28", "--only-binary", ":all:"),
        *("--find-links", own),
    )
    return sorted(_name(line.partition("==")[0]) for line in text.splitlines() if "==" in line)


def _write_constraints(folder: Path) -> None:
    pins = {f"{_metadata(each)['Name']}=={_metadata(each)['Version']}" for each in folder.iterdir()}
    (folder / "constraints.txt").write_text("".join(f"{pin}\n" for pin in sorted(pins)))


def _lock() -> str:
    return (ROOT / "requirements" / "dev.txt").read_text()


def _without_marker(block: str) -> str:
    """It was resolved for this Python; pip would ask its own."""
    head, _, rest = block.partition("\n")
    pin = head.rstrip("\\ ").partition(" ;")[0]
    return f"{pin} \\\n{rest}" if rest else pin


def _metadata(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (
            each for each in file.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each)
        )
        found = message_from_string(file.read(name).decode())
    classifiers = [each for each in found.get_all("Classifier", []) if "License" in each]
    return {**dict(found.items()), "Classifier": ";".join(classifiers)}


def _licence(found: dict[str, str]) -> str:
    stated = found.get("License-Expression") or found.get("License", "")
    if stated and len(stated) < 80:
        return stated.strip()
    return found["Classifier"].rpartition(" :: ")[2] or "see the wheel"


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
