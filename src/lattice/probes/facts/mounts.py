"""A job's file systems: the results of the helper's probe, and the counters of clients.

The counters of the Lustre client are in `llite/*/stats`. Older clients have them in
`/proc/fs/lustre`, newer ones in debugfs, which only root may read. There they are unknown.
"""

from __future__ import annotations

import re
from pathlib import Path

from lattice.base.text import inert
from lattice.domain.jobfacts import FactAbsence, FactKind, MountFact
from lattice.domain.kerneltext import figure
from lattice.domain.probed import MountLook, MountsLook
from lattice.probes.facts.nfs import MountCounts, read_mountstats
from lattice.probes.facts.tree import names_in
from lattice.probes.kernel_files import read_text

_PLACES = ("proc/fs/lustre/llite", "sys/kernel/debug/lustre/llite")
_LINE = re.compile(
    r"([a-z_]{2,32}) +([0-9]{1,18}) samples \[([a-z]{2,8})\]"
    r"(?: +([0-9]{1,18}) +([0-9]{1,18}) +([0-9]{1,18}))?(?: +[0-9]{1,38})?\s*",
    re.ASCII,
)
_INSTANCE = re.compile(r"([A-Za-z0-9_.-]{1,48})-[0-9a-f]{8,16}", re.ASCII)
_TIMES = frozenset({"usec", "usecs"})


def lustre_counts(root: Path) -> dict[str, MountCounts]:
    """By the name of the file system; one that is mounted twice is left out."""
    found: dict[str, MountCounts | None] = {}
    for place in _PLACES:
        for folder in names_in(f"{root}/{place}"):
            named = _INSTANCE.fullmatch(folder)
            counts = read_llite(read_text(f"{root}/{place}/{folder}/stats") or "")
            if named and counts is not None:
                found[named[1]] = None if named[1] in found else counts
    return {name: counts for name, counts in found.items() if counts is not None}


def file_system_of(source: str) -> str:
    """`scratch`, from `10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch` or from a folder in it."""
    return source.rpartition(":/")[2].partition("/")[0]


def read_llite(text: str) -> MountCounts | None:
    """None if it has no valid line."""
    lines = {found[1]: found for each in text.splitlines() if (found := _LINE.fullmatch(each))}
    if not lines:
        return None
    moved = {
        name: figure(lines[name][6]) if name in lines and lines[name][3] == "bytes" else None
        for name in ("read_bytes", "write_bytes")
    }
    timed = [
        (figure(each[2]) or 0, figure(each[6]) or 0)
        for name, each in lines.items()
        if each[3] in _TIMES and each[6] is not None and not name.endswith("_bytes")
    ]
    asked = sum(count for count, _ in timed)
    operations = sum(
        figure(each[2]) or 0 for name, each in lines.items() if not name.endswith("_bytes")
    )
    return MountCounts(
        read_bytes=_real(moved["read_bytes"]),
        write_bytes=_real(moved["write_bytes"]),
        operations=float(operations),
        latency_s=sum(spent for _, spent in timed) / asked / 1e6 if asked else None,
    )


def _real(count: int | None) -> float | None:
    return None if count is None else float(count)


_NFS = frozenset({"nfs", "nfs4"})
_LUSTRE = "lustre"
NOTHING = MountCounts()


def mount_facts(
    look: MountsLook, root: Path = Path("/")
) -> tuple[tuple[MountFact, ...], tuple[FactAbsence, ...]]:
    """The facts, and why some are missing."""
    nfs = read_mountstats(look.statistics)
    lustre = lustre_counts(root) if any(each.kind == _LUSTRE for each in look.mounts) else {}
    facts = tuple(_fact(each, _counts(each, nfs, lustre)) for each in look.mounts)
    absences = (FactAbsence(FactKind.MOUNTS, look.unlooked, "others"),) if look.unlooked else ()
    return facts, absences


def _counts(
    mount: MountLook, nfs: dict[str, MountCounts], lustre: dict[str, MountCounts]
) -> MountCounts:
    if mount.kind in _NFS:
        return nfs.get(mount.path, NOTHING)
    if mount.kind == _LUSTRE:
        return lustre.get(file_system_of(mount.source), NOTHING)
    return NOTHING


def _fact(mount: MountLook, counts: MountCounts) -> MountFact:
    return MountFact(
        path=inert(mount.path),
        kind=inert(mount.kind),
        source=inert(mount.source),
        answered_s=mount.answered_s,
        waited_s=mount.waited_s,
        trouble=inert(mount.trouble),
        read_bytes=counts.read_bytes,
        write_bytes=counts.write_bytes,
        operations=counts.operations,
        latency_s=counts.latency_s,
        retransmits=counts.retransmits,
        timeouts=counts.timeouts,
    )
