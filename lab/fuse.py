"""FUSE file systems that only processes of a lab see, and how they are cut off.

A process that waits for an answer its server has already taken can't be killed; it waits until
the server answers or the connection is aborted. What this program sees too is somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.command import run

# In a mount namespace of its own: the file system of connections is often not mounted.
_ABORT = """
mount -t fusectl none /sys/fs/fuse/connections || exit
for number; do
  if [ -e "/sys/fs/fuse/connections/$number" ]; then
    echo 1 >"/sys/fs/fuse/connections/$number/abort"
  fi
done
"""
_ANONYMOUS = "0:"


@dataclass(frozen=True, slots=True)
class FuseConnections:
    """Some connections, by the kernel's numbers."""

    numbers: frozenset[int]

    @classmethod
    def seen_by(cls, pids: Iterable[int]) -> FuseConnections:
        """Connections mounted where these processes are, and not where this program is."""
        found: set[int] = set()
        asked = {_mount_namespace("self"), 0}
        for pid in pids:
            if (namespace := _mount_namespace(str(pid))) not in asked:
                asked.add(namespace)
                found |= connection_numbers(_mounts(str(pid)))
        return cls(frozenset(found) - connection_numbers(_mounts("self")))

    def abort(self) -> None:
        """Give everybody who waits an error. Harmless for a connection that is gone."""
        if self.numbers:
            words = [str(number) for number in sorted(self.numbers)]
            run(["unshare", "--mount", "sh", "-c", _ABORT, "abort", *words], check=False)


def connection_numbers(mountinfo: str) -> frozenset[int]:
    """The numbers of connections in a `/proc/PID/mountinfo`: the minor of an anonymous device."""
    found = set()
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        fields = mount.split()
        if kind.partition(" ")[0].partition(".")[0] == "fuse" and fields[2].startswith(_ANONYMOUS):
            found.add(int(fields[2].removeprefix(_ANONYMOUS)))
    return frozenset(found)


def _mounts(who: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{who}/mountinfo").read_text(errors="replace")
    return ""


def _mount_namespace(who: str) -> int:
    with suppress(OSError):
        return Path(f"/proc/{who}/ns/mnt").stat().st_ino
    return 0
