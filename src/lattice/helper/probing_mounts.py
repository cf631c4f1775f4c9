"""The node's verb `probe_mounts`: whether the file systems that a job sees answer.

The probe runs in the job's mount namespace and below its root, as its owner with no other rights.
Each file system is probed in a separate process, and only that one hangs if a share is dead. It is
killed without waiting for its end, and holds its slot (`ProbeSlots`) until the kernel ends it. A
share with a hanging probe is not probed again meanwhile.

The list of mounts is read before from `/proc/PID/mountinfo`, never from a file system.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, TypeAlias

from lattice.domain.grant import Grant
from lattice.domain.latency import FileCalls
from lattice.domain.privileged import Answer, Outcome, ProbeMounts
from lattice.domain.probed import (
    LONGEST_MOUNT_STATISTICS,
    LONGEST_TEXT,
    MOST_MOUNTS,
    MountReport,
    MountsReport,
    write_mounts,
)
from lattice.helper.conversation import NoValues
from lattice.helper.kernel_texts import text_of
from lattice.helper.mounts import MADE_UP, MOST_MOUNTS_BYTES, Mount, read_mounts
from lattice.helper.privilege import Kernel, as_files_of, become
from lattice.helper.probe_base import (
    HeldSlot,
    JobFinder,
    ProbedJob,
    ProbeSlots,
    TakenSlot,
    abandon,
    answer_in_memory,
    take,
    waited_s,
)
from lattice.helper.target import CHANGED, NoTarget, ProbeTarget, find_target

_UNASKED = MADE_UP | {"devtmpfs", "ramfs", "rootfs"}
_UNSEEN = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR})
"""Of a mount that another one hides, or that is closed to the owner: the job does not use it."""
_TURN_S = 0.02
_RESULT = struct.Struct("<id")
CallCounter: TypeAlias = Callable[[int], Mapping[str, FileCalls]]
"""What a job read and wrote, by device. Raises `NoValues`."""
TOO_MANY = f"the job sees more than {MOST_MOUNTS} file systems"
FULL = "too many earlier looks still hang on this node"


def mounts_to_probe(text: str) -> list[Mount]:
    """Each file system once, at its shortest path; network file systems first."""
    at_path: dict[str, Mount] = {}
    for found in read_mounts(text):
        if found.path.startswith("/"):
            # A later mount at the same path hides the earlier one.
            at_path.pop(found.path, None)
            at_path[found.path] = found
    chosen: dict[int, Mount] = {}
    for each in at_path.values():
        known = chosen.get(each.device)
        if each.kind not in _UNASKED and (known is None or _rank(each) < _rank(known)):
            chosen[each.device] = each
    return sorted(chosen.values(), key=lambda each: (not each.is_remote, each.path))


def _number(device: int) -> int:
    return os.major(device) << 32 | os.minor(device)


def _rank(mount: Mount) -> tuple[bool, int, str]:
    return not mount.whole, len(mount.path), mount.path


@dataclass(slots=True)
class _Probe:
    mount: Mount
    slot: int
    pid: int = 0
    result: int = -1
    begun_s: float = 0.0
    over: bool = False
    report: MountReport | None = None
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

    def run(self, asked: Sequence[tuple[Mount, int]]) -> tuple[list[MountReport], bool]:
        """Results in the given order, and whether all were probed. `asked` has the slot files."""
        probes = [_Probe(mount, slot) for mount, slot in asked]
        waiting, running = list(probes), list[_Probe]()
        until = time.monotonic() + self._timeout_s
        while (waiting or running) and (now := time.monotonic()) < until:
            waiting = [each for each in waiting if not self._begun(each, running)]
            self._hear(running, min(until - now, _TURN_S if waiting else self._timeout_s))
            running = [each for each in running if not each.over]
        for each in running:
            abandon(each.pid, (each.result,))
            each.over = True
            each.report = _report(each.mount, waited_s=time.monotonic() - each.begun_s)
        for each in waiting:
            if each.earlier is not None:
                each.over, each.report = True, _report(each.mount, waited_s=waited_s(each.earlier))
        found = [each.report for each in probes if each.report is not None]
        return found, all(each.over for each in probes)

    def _begun(self, probe: _Probe, running: list[_Probe]) -> bool:
        if len(running) >= self._room:
            return False
        taken = take(probe.slot)
        if not isinstance(taken, HeldSlot):
            probe.earlier = taken
            if waited_s(taken) < self._timeout_s:
                return False
            # It has waited longer than this probe may.
            probe.over, probe.report = True, _report(probe.mount, waited_s=waited_s(taken))
            return True
        probe.earlier = None
        result, answer = os.pipe()
        probe.begun_s = time.monotonic()
        probe.pid = os.fork()
        if probe.pid == 0:
            self._answer(probe.mount.path, probe.slot, answer)
        os.close(answer)
        # From here on only the child holds the lock.
        os.close(probe.slot)
        probe.result = result
        running.append(probe)
        return True

    def _answer(self, path: str, slot: int, answer: int) -> NoReturn:
        """Runs in a child, which closes all other descriptors."""
        fault = 0
        try:
            signal.alarm(0)
            self._kernel.die_with_parent()
            first, last = sorted((slot, answer))
            os.closerange(0, first)
            os.closerange(first + 1, last)
            os.closerange(last + 1, max(1024, last + 64))
            begun_s = time.monotonic()
            try:
                os.statvfs(path)
                os.stat(path)  # noqa: PTH116
            except OSError as error:
                fault = error.errno or -1
            os.write(answer, _RESULT.pack(fault, time.monotonic() - begun_s))
        finally:
            os._exit(0)

    def _hear(self, running: Sequence[_Probe], most_s: float) -> None:
        poll = select.poll()
        for each in running:
            poll.register(each.result, select.POLLIN)
        ready = {result for result, _ in poll.poll(most_s * 1000)}
        for each in running:
            if each.result in ready:
                raw = os.read(each.result, _RESULT.size)
                os.close(each.result)
                os.waitpid(each.pid, 0)  # it has written its result and exits
                each.over, each.report = True, _report_from(each.mount, raw)


def _report_from(mount: Mount, raw: bytes) -> MountReport | None:
    if len(raw) != _RESULT.size:
        return _report(mount, trouble="the look at it was ended")
    fault, seconds = _RESULT.unpack(raw)
    if fault in _UNSEEN:
        return None
    trouble = os.strerror(fault) if fault > 0 else "it could not be looked at" if fault else ""
    return _report(mount, answered_s=max(0.0, seconds), trouble=trouble)


def _report(
    mount: Mount,
    *,
    answered_s: float | None = None,
    waited_s: float | None = None,
    trouble: str = "",
) -> MountReport:
    return MountReport(
        path=mount.path,
        kind=mount.kind,
        source=mount.source,
        answered_s=answered_s,
        waited_s=waited_s,
        trouble=trouble,
        device=f"{os.major(mount.device)}:{os.minor(mount.device)}",
    )


def with_calls(report: MountReport, calls: Mapping[str, FileCalls]) -> MountReport:
    """The report with what the job read and wrote there."""
    found = calls.get(report.device, FileCalls())
    return replace(
        report,
        calls=found.calls,
        spent_s=found.spent_ns / 1e9,
        read_bytes=found.read_bytes,
        write_bytes=found.write_bytes,
    )


@dataclass(frozen=True, slots=True)
class JobMounts:
    """Handles the verb; each request uses it in its own child, which then becomes the owner."""

    kernel: Kernel
    finder: JobFinder
    slots: ProbeSlots
    calls: CallCounter
    proc: Path = field(default=Path("/proc"))

    def probe(
        self, grant: Grant, question: ProbeMounts, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        try:
            job = self.finder.find(grant, descriptors)
            with find_target(self.kernel, self.proc, job.groups, job.uid, job.id) as target:
                return self._probe(job, target, question.timeout_ms / 1000)
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
        every = mounts_to_probe(text_of(folder, "mountinfo", MOST_MOUNTS_BYTES))
        with as_files_of(self.kernel, job.uid):
            statistics = text_of(folder, "mountstats", LONGEST_MOUNT_STATISTICS)
        room = self.slots.room(job.uid)
        asked = [
            (each, self.slots.open(job.uid, "mount", _number(each.device)))
            for each in every[:MOST_MOUNTS]
        ]
        calls: Mapping[str, FileCalls] | None = None
        uncounted = ""
        try:
            calls = self.calls(job.id)
        except NoValues as reason:
            uncounted = str(reason)[:LONGEST_TEXT]
        self._go(job, target)
        found, whole = MountProbe(self.kernel, timeout_s, room).run(asked)
        if calls is not None:
            found = [with_calls(each, calls) for each in found]
        unlooked = TOO_MANY if len(every) > MOST_MOUNTS else "" if whole else FULL
        report = MountsReport(
            mounts=tuple(found), statistics=statistics, unlooked=unlooked, uncounted=uncounted
        )
        return answer_in_memory(write_mounts(report))

    def _go(self, job: ProbedJob, target: ProbeTarget) -> None:
        """Enter the job as its owner; this can't be undone. Raises `NoTarget`."""
        target.join(self.kernel)
        if not target.unchanged():
            raise NoTarget(CHANGED)
        become(self.kernel, job.owner.account, job.owner.groups)
        self.kernel.hide_memory()
