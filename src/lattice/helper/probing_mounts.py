"""The node's verb `probe_mounts`: whether the file systems that a job sees answer.

The probe runs in the job's mount namespace and below its root, as its owner with no other rights.
Each file system is probed in a separate process, and only that one hangs if a share is dead. It is
killed without waiting for its end, and holds its slot (`probe_slots`) until the kernel ends it. A
share with a hanging probe is not probed again meanwhile.

The list of mounts is read before from `/proc/PID/mountinfo`, never from a file system.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from lattice.domain.grant import Grant
from lattice.domain.privileged import Answer, Outcome, ProbeMounts
from lattice.domain.probed import (
    LONGEST_MOUNT_STATISTICS,
    MOST_MOUNTS,
    MountLook,
    MountsLook,
    write_mounts,
)
from lattice.helper.mounts import MADE_UP, MOST_MOUNTS_BYTES
from lattice.helper.privilege import Kernel, become
from lattice.helper.probe_base import JobFinder, NotProbed, ProbedJob, as_files_of, told_in_memory
from lattice.helper.probe_slots import HeldSlot, ProbeSlots, TakenSlot, take, waited_s
from lattice.helper.process import text_of
from lattice.helper.target import CHANGED, NoTarget, ProbeTarget, find_target

_UNASKED = MADE_UP | {"devtmpfs", "ramfs", "rootfs"}
_REMOTE = frozenset(
    {
        *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "virtiofs"),
        *("wekafs", "pvfs2", "glusterfs", "afs", "panfs"),
    }
)
_DEVICE = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_UNSEEN = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR})
"""Of a mount that another one hides, or that is closed to the owner: the job does not use it."""
_TURN_S = 0.02
_RESULT = struct.Struct("<id")
TOO_MANY = f"the job sees more than {MOST_MOUNTS} file systems"
FULL = "too many earlier looks still hang on this node"


@dataclass(frozen=True, slots=True)
class JobMount:
    """One line of `mountinfo`."""

    device: int
    path: str
    kind: str
    source: str
    whole: bool
    """Whether the file system's own root is mounted there."""

    @property
    def is_remote(self) -> bool:
        return self.kind in _REMOTE or self.kind.startswith("fuse")


def mounts_to_look_at(text: str) -> list[JobMount]:
    """Each file system once, at its shortest path; network file systems first."""
    at_path: dict[str, JobMount] = {}
    for found in map(_read_line, text.splitlines()):
        if found is not None:
            # A later mount at the same path hides the earlier one.
            at_path.pop(found.path, None)
            at_path[found.path] = found
    chosen: dict[int, JobMount] = {}
    for each in at_path.values():
        known = chosen.get(each.device)
        if each.kind not in _UNASKED and (known is None or _rank(each) < _rank(known)):
            chosen[each.device] = each
    return sorted(chosen.values(), key=lambda each: (not each.is_remote, each.path))


def _rank(mount: JobMount) -> tuple[bool, int, str]:
    return not mount.whole, len(mount.path), mount.path


def _read_line(line: str) -> JobMount | None:
    # 36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    before, dash, after = line.partition(" - ")
    words, rest = before.split(" "), after.split(" ")
    device = _DEVICE.fullmatch(words[2]) if dash and len(words) > 5 and len(rest) > 1 else None
    if device is None or not words[4].startswith("/"):
        return None
    return JobMount(
        device=int(device[1]) << 32 | int(device[2]),
        path=_plain(words[4]),
        kind=rest[0],
        source=_plain(rest[1]),
        whole=words[3] == "/",
    )


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


@dataclass(slots=True)
class _Look:
    mount: JobMount
    place: int
    pid: int = 0
    heard: int = -1
    begun_s: float = 0.0
    over: bool = False
    told: MountLook | None = None
    """Also None if the job can't see the mount."""
    earlier: TakenSlot | None = None
    """The earlier probe that still hangs there."""


class MountProbe:
    """Probes many file systems with the current rights of this process."""

    def __init__(self, kernel: Kernel, timeout_s: float, room: int) -> None:
        """`room`: how many probes may run at once."""
        self._kernel = kernel
        self._timeout_s = timeout_s
        self._room = room

    def look(self, asked: Sequence[tuple[JobMount, int]]) -> tuple[list[MountLook], bool]:
        """Results in the given order, and whether all were probed. `asked` has the slot files."""
        looks = [_Look(mount, place) for mount, place in asked]
        waiting, under_way = list(looks), list[_Look]()
        until = time.monotonic() + self._timeout_s
        while (waiting or under_way) and (now := time.monotonic()) < until:
            waiting = [each for each in waiting if not self._begun(each, under_way)]
            self._hear(under_way, min(until - now, _TURN_S if waiting else self._timeout_s))
            under_way = [each for each in under_way if not each.over]
        for each in under_way:
            self._abandon(each)
        for each in waiting:
            if each.earlier is not None:
                each.over, each.told = True, _told(each.mount, waited_s=waited_s(each.earlier))
        found = [each.told for each in looks if each.told is not None]
        return found, all(each.over for each in looks)

    def _begun(self, look: _Look, under_way: list[_Look]) -> bool:
        if len(under_way) >= self._room:
            return False
        taken = take(look.place)
        if not isinstance(taken, HeldSlot):
            look.earlier = taken
            if waited_s(taken) < self._timeout_s:
                return False
            # It has waited longer than this probe may.
            look.over, look.told = True, _told(look.mount, waited_s=waited_s(taken))
            return True
        look.earlier = None
        heard, tell = os.pipe()
        look.begun_s = time.monotonic()
        look.pid = os.fork()
        if look.pid == 0:
            self._answer(look.mount.path, look.place, tell)
        os.close(tell)
        # From here on only the child holds the lock.
        os.close(look.place)
        look.heard = heard
        under_way.append(look)
        return True

    def _answer(self, path: str, place: int, tell: int) -> NoReturn:
        """Runs in a child, which closes all other descriptors."""
        fault = 0
        try:
            signal.alarm(0)
            self._kernel.die_with_parent()
            first, last = sorted((place, tell))
            os.closerange(0, first)
            os.closerange(first + 1, last)
            os.closerange(last + 1, max(1024, last + 64))
            begun_s = time.monotonic()
            try:
                os.statvfs(path)
                os.stat(path)  # noqa: PTH116
            except OSError as error:
                fault = error.errno or -1
            os.write(tell, _RESULT.pack(fault, time.monotonic() - begun_s))
        finally:
            os._exit(0)

    def _hear(self, under_way: Sequence[_Look], most_s: float) -> None:
        poll = select.poll()
        for each in under_way:
            poll.register(each.heard, select.POLLIN)
        ready = {heard for heard, _ in poll.poll(most_s * 1000)}
        for each in under_way:
            if each.heard in ready:
                raw = os.read(each.heard, _RESULT.size)
                os.close(each.heard)
                os.waitpid(each.pid, 0)  # it has written its result and exits
                each.over, each.told = True, _told_by(each.mount, raw)

    def _abandon(self, look: _Look) -> None:
        with suppress(ProcessLookupError):
            os.kill(look.pid, signal.SIGKILL)
        os.close(look.heard)
        with suppress(ChildProcessError):
            os.waitpid(look.pid, os.WNOHANG)
        look.over = True
        look.told = _told(look.mount, waited_s=time.monotonic() - look.begun_s)


def _told_by(mount: JobMount, raw: bytes) -> MountLook | None:
    if len(raw) != _RESULT.size:
        return _told(mount, trouble="the look at it was ended")
    fault, seconds = _RESULT.unpack(raw)
    if fault in _UNSEEN:
        return None
    trouble = os.strerror(fault) if fault > 0 else "it could not be looked at" if fault else ""
    return _told(mount, answered_s=max(0.0, seconds), trouble=trouble)


def _told(
    mount: JobMount,
    *,
    answered_s: float | None = None,
    waited_s: float | None = None,
    trouble: str = "",
) -> MountLook:
    return MountLook(
        path=mount.path,
        kind=mount.kind,
        source=mount.source,
        answered_s=answered_s,
        waited_s=waited_s,
        trouble=trouble,
    )


@dataclass(frozen=True, slots=True)
class JobMounts:
    """Handles the verb; each request uses it in its own child, which then becomes the owner."""

    kernel: Kernel
    finder: JobFinder
    places: ProbeSlots
    proc: Path = field(default=Path("/proc"))

    def probe(
        self, grant: Grant, question: ProbeMounts, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        try:
            job = self.finder.find(grant, descriptors)
            with find_target(self.kernel, self.proc, job.groups, job.uid, job.id) as target:
                return self._probe(job, target, question.timeout_ms / 1000)
        except NotProbed as refusal:
            return refusal.answer, ()
        except NoTarget as refusal:
            return Answer(outcome=Outcome.FAILED, message=str(refusal).rstrip(".")), ()
        except OSError as error:
            # A root that the owner has mounted (FUSE) is closed to all others, root included.
            why = error.strerror or type(error).__name__
            return Answer(outcome=Outcome.FAILED, message=f"the job can't be entered: {why}"), ()

    def _probe(
        self, job: ProbedJob, target: ProbeTarget, timeout_s: float
    ) -> tuple[Answer, Sequence[int]]:
        folder = target.process.folder
        every = mounts_to_look_at(text_of(folder, "mountinfo", MOST_MOUNTS_BYTES))
        with as_files_of(self.kernel, job.uid):
            statistics = text_of(folder, "mountstats", LONGEST_MOUNT_STATISTICS)
        room = self.places.room(job.uid)
        asked = [
            (each, self.places.open(job.uid, "mount", each.device)) for each in every[:MOST_MOUNTS]
        ]
        self._go(job, target)
        found, whole = MountProbe(self.kernel, timeout_s, room).look(asked)
        unlooked = TOO_MANY if len(every) > MOST_MOUNTS else "" if whole else FULL
        look = MountsLook(mounts=tuple(found), statistics=statistics, unlooked=unlooked)
        return told_in_memory(write_mounts(look))

    def _go(self, job: ProbedJob, target: ProbeTarget) -> None:
        """Enter the job as its owner; this can't be undone. Raises `NoTarget`."""
        for each in target.namespaces:
            self.kernel.join_namespace(each)
        ours, theirs = os.stat("/"), os.fstat(target.root)  # noqa: PTH116
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
            os.fchdir(target.root)
            os.chroot(".")
        if not target.unchanged():
            raise NoTarget(CHANGED)
        become(self.kernel, job.owner.account, job.owner.groups)
        self.kernel.hide_memory()
