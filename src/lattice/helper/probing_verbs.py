"""Combines the verbs that inspect a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lattice.domain.grant import Grant
from lattice.domain.privileged import Answer, DumpStacks, ProbeMounts, ReadTasks
from lattice.helper.account import answers_refusals
from lattice.helper.journal import HelperJournal
from lattice.helper.privilege import Capability, Kernel
from lattice.helper.probe_base import JobFinder, ProbeSlots
from lattice.helper.probing_mounts import CallCounter, JobMounts
from lattice.helper.programs import find_program
from lattice.helper.stacks import JobStacks, py_spy_program
from lattice.helper.tasks import JobTasks, TaskReader

_TO_READ = (Capability.SETUID, Capability.SETGID, Capability.SYS_PTRACE)
# SYS_ADMIN, SYS_CHROOT: to join the job's namespaces and root before becoming its owner.
_TO_PROBE = (*_TO_READ, Capability.SYS_ADMIN, Capability.SYS_CHROOT)
# SYS_ADMIN: to read `/proc/PID/stack` before becoming its owner.
_TO_DUMP = (*_TO_READ, Capability.SYS_ADMIN)
_USUAL = "/usr/local/bin:/usr/bin"


class Probing:
    """The verbs that inspect a job, each with only the capabilities it needs."""

    def __init__(
        self,
        kernel: Kernel,
        finder: JobFinder,
        slots: ProbeSlots,
        py_spy: int | None,
        calls: CallCounter,
    ) -> None:
        reader = TaskReader(kernel)
        self._kernel = kernel
        self._mounts = JobMounts(kernel, finder, slots, calls)
        self._tasks = JobTasks(reader, finder)
        self._stacks = JobStacks(kernel, reader, finder, slots, py_spy)

    @answers_refusals
    def act(
        self,
        grant: Grant,
        question: ProbeMounts | ReadTasks | DumpStacks,
        descriptors: Sequence[int],
    ) -> tuple[Answer, Sequence[int]]:
        if isinstance(question, ProbeMounts):
            self._kernel.set_capabilities(_TO_PROBE)
            return self._mounts.probe(grant, question, descriptors)
        if isinstance(question, DumpStacks):
            self._kernel.set_capabilities(_TO_DUMP)
            return self._stacks.dump(grant, question, descriptors)
        self._kernel.set_capabilities(_TO_READ)
        return self._tasks.read(grant, descriptors)


def find_py_spy(named: Path | None, journal: HelperJournal) -> int | None:
    """The given py-spy, or one that is installed beside this program or on the node.

    Raises `OSError` only for a given one.
    """
    found = named or find_program("py-spy", f"{Path(sys.executable).parent}:{_USUAL}")
    try:
        return py_spy_program(found)
    except OSError as error:
        if named is not None:
            raise
        journal.note("no py-spy", reason=str(error))
        return None
