"""On what file system an output lies, and whether its answers can be believed and waited for.

Asked of `/proc/PID/mountinfo` and never of the file system: one that a user runs himself (FUSE)
answers when it likes, and whoever waits for it can't even be killed. Files that the kernel makes
up (`/proc/PID/mem` is a "regular file") are no output of a job.
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
"""Kinds without a device or a server behind them."""
_DEVICE = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)
_ID = re.compile(r"[0-9]{1,10}", re.ASCII)
_BY_ROOT = "user_id=0"


@dataclass(frozen=True, slots=True)
class Mount:
    """One line: which file system stands there, and the options of the file system itself."""

    id: int
    device: int
    kind: str
    options: tuple[str, ...]

    @property
    def is_fuse(self) -> bool:
        return self.kind in {"fuse", "fuseblk"} or self.kind.startswith("fuse.")


def read_mounts(text: str) -> list[Mount]:
    """Every line that is one; blanks inside names are escaped by the kernel."""
    return [found for found in map(_read_line, text.splitlines()) if found is not None]


def _read_line(line: str) -> Mount | None:
    # 36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    before, dash, after = line.partition(" - ")
    words, rest = before.split(" "), after.split(" ")
    if not dash or len(words) < 6 or len(rest) < 3 or not _ID.fullmatch(words[0]):
        return None
    device = _DEVICE.fullmatch(words[2])
    if device is None:
        return None
    try:
        number = os.makedev(int(device[1]), int(device[2]))
    except OverflowError:
        return None
    return Mount(int(words[0]), number, rest[0], tuple(rest[2].split(",")))


class Mounts:
    """The mounts one process sees."""

    def __init__(self, mounts: Iterable[Mount] = ()) -> None:
        self._by_id: dict[int, Mount] = {}
        self._by_device: dict[int, Mount] = {}
        for mount in mounts:
            self._by_id.setdefault(mount.id, mount)
            self._by_device.setdefault(mount.device, mount)

    def find(self, mount_id: int | None, device: int) -> Mount | None:
        """By the mount, or by the file system: another namespace mounts the same one again."""
        found = self._by_id.get(mount_id) if mount_id is not None else None
        return found or self._by_device.get(device)


def mount_fault(own: Mount | None, theirs: Mount | None) -> str:
    """Why nothing is read there, or an empty text.

    `own` is what this process sees of it, which only root arranged; `theirs` what a process of
    the job sees, which its user may have mounted as root of a namespace of his own.
    """
    mount = own or theirs
    if mount is None:
        return "nobody says on what file system it lies"
    if mount.kind in MADE_UP:
        return "the kernel makes it up: it is no file"
    if mount.is_fuse and (own is None or _BY_ROOT not in mount.options):
        return "it lies on a file system that a user runs"
    if own is None and mount.kind == "overlay":
        # Its layers may lie on one.
        return "it lies on a file system that the job put together"
    return ""
