"""A job's file systems: the results of the helper's probe, and the counters of clients and disks.

The NFS client's counters of each mount are in `/proc/PID/mountstats`.

The counters of the Lustre client are in `llite/*/stats`. Older clients have them in
`/proc/fs/lustre`, newer ones in debugfs, which only root may read. There they are unknown.

For all other file systems the kernel counts what the job itself reads and writes (by eBPF). A local
one has a disk too, which counts for the whole node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from lattice.base.text import inert
from lattice.domain.jobfacts import FactAbsence, FactKind, MountFact
from lattice.domain.kerneltext import figure
from lattice.domain.probed import MountReport, MountsReport
from lattice.probes.facts.disks import DiskCounts, read_diskstats
from lattice.probes.kernel_files import names_in, read_text

# The kernel escapes space, tab, line feed and backslash in a name, and no other character.
_DEVICE = re.compile(r"device [^ ]+ mounted on ([^ ]+)(.*)")
_NFS_MOUNT = re.compile(r" with fstype nfs4? statvers=1\.[0-9]+")
_OPERATION = re.compile(r"\s+([A-Z][A-Z_0-9]{1,40}): ([0-9 ]+)", re.ASCII)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_BYTES = "bytes:"
_LEAST_FIGURES = 8
_OPS, _SENT, _TIMEOUTS, _ROUND_TRIP, _WHOLE = 0, 1, 2, 6, 7
"""Indexes in an operation: requests, transmissions, timeouts, …, times in ms: rtt, execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountCounts:
    """Since the mount. None: not known."""

    read_bytes: float | None = None
    write_bytes: float | None = None
    operations: float | None = None
    latency_s: float | None = None
    retransmits: float | None = None
    timeouts: float | None = None
    counted_by: str = ""
    uncounted: str = ""
    spent_s: float | None = None


def read_mountstats(text: str) -> dict[str, MountCounts]:
    """By mount point; of two at one path the last one, which hides the other."""
    found: dict[str, MountCounts] = {}
    path, lines = "", list[str]()
    for line in (*text.split("\n"), "device none"):
        if line.startswith("device "):
            if path:
                found[path] = _nfs_counts(lines)
            device = _DEVICE.fullmatch(line)
            path = _plain(device[1]) if device else ""
            if device and not _NFS_MOUNT.fullmatch(device[2]):
                # Another mount at this path hides the earlier one.
                found.pop(path, None)
                path = ""
            lines = []
        elif path:
            lines.append(line)
    return found


def _nfs_counts(lines: list[str]) -> MountCounts:
    line = next((each for each in lines if each.strip().startswith(_BYTES)), "")
    transferred = [figure(each) for each in line.replace(_BYTES, "", 1).split()]
    operations = [found for each in lines if (found := _operation(each))]
    # Normal, direct and server bytes, each read and written; the last two went over the network.
    read, written = transferred[4:6] if len(transferred) >= 6 else (None, None)
    if not operations:
        return MountCounts(read_bytes=_real(read), write_bytes=_real(written))
    asked = sum(each[_OPS] for each in operations)
    return MountCounts(
        read_bytes=_real(read),
        write_bytes=_real(written),
        operations=float(asked),
        latency_s=sum(each[_WHOLE] for each in operations) / asked / 1000 if asked else None,
        retransmits=float(sum(max(0, each[_SENT] - each[_OPS]) for each in operations)),
        timeouts=float(sum(each[_TIMEOUTS] for each in operations)),
    )


def _operation(line: str) -> list[int] | None:
    found = _OPERATION.fullmatch(line)
    numbers = [figure(each) for each in found[2].split()] if found else []
    known = [each for each in numbers if each is not None]
    return known if len(known) == len(numbers) >= _LEAST_FIGURES else None


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


_FOLDERS = ("proc/fs/lustre/llite", "sys/kernel/debug/lustre/llite")
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
    for parent in _FOLDERS:
        for folder in names_in(f"{root}/{parent}"):
            named = _INSTANCE.fullmatch(folder)
            counts = read_llite(read_text(f"{root}/{parent}/{folder}/stats") or "")
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
_BY_EBPF = "eBPF"
_NOT_BY_NFS = "the NFS client counts nothing for it"
_NOT_BY_LUSTRE = "this agent can't read the counters of the Lustre client"
NOTHING = MountCounts()


def mount_facts(
    probed: MountsReport, root: Path = Path("/")
) -> tuple[tuple[MountFact, ...], tuple[FactAbsence, ...]]:
    """The facts, and why some are missing."""
    nfs = read_mountstats(probed.statistics)
    lustre = lustre_counts(root) if any(each.kind == _LUSTRE for each in probed.mounts) else {}
    disks = read_diskstats(read_text(f"{root}/proc/diskstats") or "")
    facts = tuple(
        _fact(each, _counts(each, probed.uncounted, nfs, lustre), disks.get(each.device))
        for each in probed.mounts
    )
    absences = (FactAbsence(FactKind.MOUNTS, probed.unlooked, "others"),) if probed.unlooked else ()
    return facts, absences


def _counts(
    mount: MountReport,
    uncounted: str,
    nfs: dict[str, MountCounts],
    lustre: dict[str, MountCounts],
) -> MountCounts:
    if mount.kind in _NFS:
        found = nfs.get(mount.path, NOTHING)
        return _by(found, "nfs", _NOT_BY_NFS)
    if mount.kind == _LUSTRE:
        found = lustre.get(file_system_of(mount.source), NOTHING)
        return _by(found, "lustre", _NOT_BY_LUSTRE)
    return _own_calls(mount, uncounted)


def _by(counts: MountCounts, client: str, otherwise: str) -> MountCounts:
    if counts == NOTHING:
        return MountCounts(uncounted=otherwise)
    return replace(counts, counted_by=client)


def _own_calls(mount: MountReport, uncounted: str) -> MountCounts:
    """What the job itself read and wrote there, as its system calls took."""
    if mount.calls is None:
        return MountCounts(uncounted=inert(uncounted))
    spent_s = mount.spent_s
    return MountCounts(
        read_bytes=_real(mount.read_bytes),
        write_bytes=_real(mount.write_bytes),
        operations=float(mount.calls),
        latency_s=spent_s / mount.calls if mount.calls and spent_s is not None else None,
        spent_s=spent_s,
        counted_by=_BY_EBPF,
    )


def _fact(mount: MountReport, counts: MountCounts, disk: DiskCounts | None) -> MountFact:
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
        counted_by=counts.counted_by,
        uncounted=counts.uncounted,
        spent_s=counts.spent_s,
        disk=disk.name if disk is not None else "",
        disk_read_bytes=disk.read_bytes if disk is not None else None,
        disk_write_bytes=disk.write_bytes if disk is not None else None,
        disk_operations=disk.operations if disk is not None else None,
        disk_spent_s=disk.spent_s if disk is not None else None,
        disk_busy_s=disk.busy_s if disk is not None else None,
    )
