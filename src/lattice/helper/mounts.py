"""On which file system an output is, and whether it can be trusted not to block.

The data comes from `/proc/PID/mountinfo`, never from the file system. A file system that a user
runs (FUSE) may never answer, and a process that waits for it can't be killed. Files of virtual file
systems (`/proc/PID/mem` is a "regular file") are no output of a job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

MOST_MOUNTS_BYTES = 2 * 1024 * 1024

MADE_UP = frozenset(
    {
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "cpuset", "debugfs"),
        *("devpts", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nfsd", "nsfs", "proc"),
        *("pstore", "resctrl", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"),
    }
)
"""Types of file systems without a device or a server."""
_REMOTE = frozenset(
    {
        *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "virtiofs"),
        *("wekafs", "pvfs2", "glusterfs", "afs", "panfs"),
    }
)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_DEVICE = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)
_ID = re.compile(r"[0-9]{1,10}", re.ASCII)
_BY_ROOT = "user_id=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of `mountinfo`, with the options of the file system itself."""

    id: int
    device: int
    path: str
    whole: bool
    """Whether the file system's own root is mounted there."""
    kind: str
    source: str
    options: tuple[str, ...]

    @property
    def is_fuse(self) -> bool:
        return self.kind in {"fuse", "fuseblk"} or self.kind.startswith("fuse.")

    @property
    def is_remote(self) -> bool:
        return self.kind in _REMOTE or self.kind.startswith("fuse")


def read_mounts(text: str) -> list[Mount]:
    """All valid lines; the kernel escapes blanks inside names."""
    return [found for found in map(_read_line, text.splitlines()) if found is not None]


def _read_line(line: str) -> Mount | None:
    # 36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    before, dash, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    if not dash or len(fields) < 6 or len(rest) < 3 or not _ID.fullmatch(fields[0]):
        return None
    device = _DEVICE.fullmatch(fields[2])
    if device is None:
        return None
    try:
        number = os.makedev(int(device[1]), int(device[2]))
    except OverflowError:
        return None
    return Mount(
        id=int(fields[0]),
        device=number,
        path=_plain(fields[4]),
        whole=fields[3] == "/",
        kind=rest[0],
        source=_plain(rest[1]),
        options=tuple(rest[2].split(",")),
    )


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


class Mounts:
    """The mounts that one process sees."""

    def __init__(self, mounts: Iterable[Mount] = ()) -> None:
        self._by_id: dict[int, Mount] = {}
        self._by_device: dict[int, Mount] = {}
        for mount in mounts:
            self._by_id.setdefault(mount.id, mount)
            self._by_device.setdefault(mount.device, mount)

    def find(self, mount_id: int | None, device: int) -> Mount | None:
        """By the mount, or by the device: another namespace mounts the same file system again."""
        found = self._by_id.get(mount_id) if mount_id is not None else None
        return found or self._by_device.get(device)


def mount_fault(own: Mount | None, theirs: Mount | None) -> str:
    """Why nothing is read there, or an empty string.

    `own` is the mount as this process sees it, which only root can change. `theirs` is the mount as
    a process of the job sees it. Its user may have mounted it as root of a user namespace.
    """
    mount = own or theirs
    if mount is None:
        return "nobody says on what file system it lies"
    if mount.kind in MADE_UP:
        return "the kernel makes it up: it is no file"
    if mount.is_fuse and (own is None or _BY_ROOT not in mount.options):
        return "it lies on a file system that a user runs"
    if own is None and mount.kind == "overlay":
        # Its layers may be on a FUSE file system.
        return "it lies on a file system that the job put together"
    return ""
