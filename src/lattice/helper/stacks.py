"""The node's verb `dump_stacks`: where the processes stand that do a job's work.

    1  as root with few capabilities: who they are (`tasks`), where the kernel sees them stand
    2  as the owner, with none: where their Python stands (`stacks_python`)

Nothing is stopped and no signal is sent. Where there is no Python, or it can't be read, the view of
the kernel stays, with the reason.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.domain.grant import Grant
from lattice.domain.jobfacts import Frame, StackLanguage
from lattice.domain.privileged import Answer, DumpStacks
from lattice.domain.probed import MOST_STACKS, StackLook, write_stacks
from lattice.helper.entering import Owner
from lattice.helper.privilege import Kernel, become
from lattice.helper.probing import JobFinder, NotProbed, ProbedJob, as_files_of, told_in_memory
from lattice.helper.probing_places import Places
from lattice.helper.stacks_kernel import kernel_stack
from lattice.helper.stacks_python import NOT_INSTALLED, PySpy
from lattice.helper.tasks import TaskReader, Worker

_RUNS_AT_ONCE = 4


def py_spy_program(path: Path | None) -> int | None:
    """An open descriptor of it; None where there is none. Raises `OSError`."""
    if path is None:
        return None
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if not os.stat(file).st_mode & 0o111:  # noqa: PTH116
        os.close(file)
        raise PermissionError(f"{path} can't be run")
    return file


@dataclass(frozen=True, slots=True)
class JobStacks:
    """Answers the verb, in a child of its own for each question: it is the owner afterwards."""

    kernel: Kernel
    reader: TaskReader
    finder: JobFinder
    places: Places
    py_spy: int | None

    def dump(
        self, grant: Grant, question: DumpStacks, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        try:
            job = self.finder.find(grant, descriptors)
        except NotProbed as refusal:
            return refusal.answer, ()
        found = self.reader.workers(job)[:MOST_STACKS]
        with as_files_of(self.kernel, job.uid):
            kernels = {
                each.look.pid: kernel_stack(
                    self.reader.proc, each.look.pid, each.started, job.id, each.look.state
                )
                for each in found
            }
        places = [self.places.open(job.uid, "stack", at) for at in range(_RUNS_AT_ONCE)]
        self._become(job, found)
        pythons = [each.look.pid for each in found if each.python]
        stacks = self._python_stacks(pythons, places, question.timeout_ms / 1000)
        return told_in_memory(
            write_stacks([_look(each, kernels[each.look.pid], stacks) for each in found])
        )

    def _python_stacks(
        self, pids: Sequence[int], places: Sequence[int], within_s: float
    ) -> Mapping[int, tuple[Frame, ...] | str]:
        if self.py_spy is None:
            return dict.fromkeys(pids, NOT_INSTALLED)
        return PySpy(self.kernel, self.py_spy, places).stacks(pids, within_s) if pids else {}

    def _become(self, job: ProbedJob, found: Sequence[Worker]) -> None:
        """The owner, in the group that his processes run under: the kernel compares both."""
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


def _look(
    worker: Worker, kernel: tuple[Frame, ...], stacks: Mapping[int, tuple[Frame, ...] | str]
) -> StackLook:
    look = worker.look
    python = stacks.get(look.pid, "")
    by_python = not isinstance(python, str)
    return StackLook(
        pid=look.pid,
        rank=look.rank,
        language=StackLanguage.PYTHON if by_python else StackLanguage.KERNEL,
        frames=python if not isinstance(python, str) else kernel,
        state=look.state,
        waits_in=look.waits_in,
        trouble=python if isinstance(python, str) else "",
        command=look.command,
    )
