"""The node's verb `dump_stacks`: the stacks of the processes that do a job's work.

    1  as root with few capabilities: find them (`tasks`) and read their kernel stacks
    2  as the owner, with no capability: read their Python stacks (`stacks_python`)

Nothing is stopped and no signal is sent. If there is no Python, or it can't be read, the answer has
the kernel stack and the reason.

`/proc/PID/stack` needs CAP_SYS_ADMIN. The answer has names of functions and no addresses. Only the
stack of a sleeping process is read, because it does not change meanwhile.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.domain.grant import Grant
from lattice.domain.jobfacts import StackFrame, StackLanguage
from lattice.domain.privileged import Answer, DumpStacks
from lattice.domain.probed import MOST_FRAMES, MOST_STACKS, StackReport, write_reports
from lattice.helper.job_entry import Owner
from lattice.helper.kernel_texts import text_of
from lattice.helper.privilege import Kernel, as_files_of, become
from lattice.helper.probe_base import JobFinder, ProbedJob, ProbeSlots, answer_in_memory
from lattice.helper.process import pinned
from lattice.helper.stacks_python import NOT_INSTALLED, PySpy
from lattice.helper.tasks import TaskReader, TaskWorker

_LINE = re.compile(r"\[<[0-9a-f]{1,16}>\] ([A-Za-z_][A-Za-z0-9_.]{0,127})\+0x", re.ASCII)
_ASLEEP = frozenset("SDI")
_DULL = ("do_syscall_", "entry_SYSCALL_", "el0_", "el0t_", "invoke_syscall")
"""The frames with which every system call starts."""


def read_kernel_stack(text: str) -> tuple[StackFrame, ...]:
    """The functions, innermost first."""
    found = (_LINE.match(line) for line in text.splitlines())
    names = [each[1] for each in found if each]
    return tuple(StackFrame(name) for name in names if not name.startswith(_DULL))[:MOST_FRAMES]


def kernel_stack(
    proc: Path, pid: int, started: int, job_id: int, state: str
) -> tuple[StackFrame, ...]:
    """The stack of exactly that process while it sleeps; else empty."""
    if state not in _ASLEEP:
        return ()
    with pinned(proc, pid, job_id) as process:
        if process is None or process.started != started:
            return ()
        frames = read_kernel_stack(text_of(process.folder, "stack"))
        return frames if process.unchanged() else ()


_RUNS_AT_ONCE = 4


def py_spy_program(path: Path | None) -> int | None:
    """An open descriptor of it; None without a path. Raises `OSError`."""
    if path is None:
        return None
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if not os.stat(file).st_mode & 0o111:  # noqa: PTH116
        os.close(file)
        raise PermissionError(f"{path} can't be run")
    return file


@dataclass(frozen=True, slots=True)
class JobStacks:
    """Handles the verb; each request uses it in its own child, which then becomes the owner."""

    kernel: Kernel
    reader: TaskReader
    finder: JobFinder
    slots: ProbeSlots
    py_spy: int | None

    def dump(
        self, grant: Grant, question: DumpStacks, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        job = self.finder.find(grant, descriptors)
        found = self.reader.workers(job)[:MOST_STACKS]
        with as_files_of(self.kernel, job.uid):
            kernels = {
                each.report.pid: kernel_stack(
                    self.reader.proc, each.report.pid, each.started, job.id, each.report.state
                )
                for each in found
            }
        slots = [self.slots.open(job.uid, "stack", at) for at in range(_RUNS_AT_ONCE)]
        self._become(job, found)
        pythons = [each.report.pid for each in found if each.python]
        stacks = self._python_stacks(pythons, slots, question.timeout_ms / 1000)
        return answer_in_memory(
            write_reports([_report(each, kernels[each.report.pid], stacks) for each in found])
        )

    def _python_stacks(
        self, pids: Sequence[int], slots: Sequence[int], within_s: float
    ) -> Mapping[int, tuple[StackFrame, ...] | str]:
        if self.py_spy is None:
            return dict.fromkeys(pids, NOT_INSTALLED)
        return PySpy(self.kernel, self.py_spy, slots).stacks(pids, within_s) if pids else {}

    def _become(self, job: ProbedJob, found: Sequence[TaskWorker]) -> None:
        """Become the owner, with the group of the job's processes: the kernel compares both."""
        owner = job.owner
        gids = {each.gid for each in found}
        gid = gids.pop() if len(gids) == 1 else owner.account.pw_gid
        if gid != owner.account.pw_gid and gid in owner.groups:
            owner = Owner(account=_in_group(owner.account, gid), groups=owner.groups)
        become(self.kernel, owner.account, owner.groups)
        self.kernel.hide_memory()
        with suppress(OSError):
            os.chdir("/")


def _in_group(account: pwd.struct_passwd, gid: int) -> pwd.struct_passwd:
    return pwd.struct_passwd((*account[:3], gid, *account[4:]))


def _report(
    worker: TaskWorker,
    kernel: tuple[StackFrame, ...],
    stacks: Mapping[int, tuple[StackFrame, ...] | str],
) -> StackReport:
    task = worker.report
    python = stacks.get(task.pid, "")
    by_python = not isinstance(python, str)
    return StackReport(
        pid=task.pid,
        rank=task.rank,
        language=StackLanguage.PYTHON if by_python else StackLanguage.KERNEL,
        frames=python if not isinstance(python, str) else kernel,
        state=task.state,
        waits_in=task.waits_in,
        trouble=python if isinstance(python, str) else "",
        command=task.command,
    )
