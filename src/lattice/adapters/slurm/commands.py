"""Slurm's own commands, for data that slurmrestd does not have. They change nothing.

They run without a shell, with a small environment, and with limits on time and output. Their output
is untrusted like all text from Slurm: parsers skip malformed lines.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from lattice.base.errors import Unavailable

_READ_BYTES = 256 * 1024
_EXCERPT = 300
_ROWS_LIMIT_BYTES = 512 * 1024 * 1024
Printed = bytes | bytearray
_SECONDS = {"SLURM_TIME_FORMAT": "%s"}


class CommandFailed(Unavailable):
    """A command that ran and failed; `output` is its output."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


class CommandMissing(Unavailable):
    """A command that can't be run."""


class SlurmCommands:
    """Runs `scontrol`, `sacctmgr`, `sacct` and `squeue` as the user of this process.

    They are found in `bin_dir`, else on the PATH. `prefix` goes before every command line, for a
    site with Slurm in a container.
    """

    def __init__(
        self,
        conf: Path | None = None,
        *,
        bin_dir: Path | None = None,
        prefix: Sequence[str] = (),
        timeout_s: float = 10.0,
        limit_bytes: int = 32 * 1024 * 1024,
    ) -> None:
        self._conf = conf
        self._bin_dir = bin_dir
        self._prefix = tuple(prefix)
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes

    async def topology(self) -> str:
        """The switches: `scontrol show topology`. Empty if the site has none."""
        return await self._run("scontrol", "show", "topology")

    async def configuration(self) -> str:
        """Settings of slurmctld, as lines of `Name = value`."""
        return await self._run("scontrol", "show", "config")

    async def accounting_configuration(self) -> str:
        """Settings of slurmdbd, as lines of `Name = value`."""
        return await self._run("sacctmgr", "-n", "show", "configuration")

    async def admin_level(self, user: str) -> str:
        """`None`, `Operator` or `Administrator`; empty if slurmdbd does not have the user."""
        return await self._run("sacctmgr", "-nP", "show", "user", user, "format=AdminLevel")

    async def associations(self, cluster: str) -> str:
        """One line an association, deleted ones included: `id|cluster|account|user`."""
        return await self._run(
            *("sacctmgr", "-nP", "show", "assoc", "withdeleted"),
            *("format=id,cluster,account,user", f"cluster={cluster}"),
        )

    async def account_limits(self, cluster: str) -> str:
        """One line an association: `account|user|GrpTRES|GrpJobs`; those of users may be there."""
        return await self._run(
            *("sacctmgr", "-nP", "show", "assoc", "where", f"cluster={cluster}", "user="),
            "format=account,user,grptres,grpjobs",
        )

    async def exit_codes(self, job_ids: Iterable[int]) -> str:
        """One line a run: `id|seconds of its submit|code:signal`."""
        ids = ",".join(map(str, sorted(set(job_ids))))
        return await self._run(*("sacct", "-nPXD", "-o", "JobIDRaw,Submit,ExitCode"), *("-j", ids))

    async def used(self, job_id: int) -> str:
        """One line a run and a step: `id|seconds of its start|processor time|memory|joules`."""
        shown = "JobIDRaw,Start,TotalCPU,MaxRSS,ConsumedEnergyRaw"
        return await self._run("sacct", "-nPD", "-o", shown, "-j", str(job_id))

    async def job_shown(self, name: str) -> str:
        """A job as slurmctld has it, on several lines, with file names expanded.

        `name`: its id, which may be that of a whole array, or ARRAY_TASK.
        """
        return await self._run("scontrol", "show", "job", name)

    async def live_jobs(self, user: str) -> str:
        """The jobs of a user that slurmctld has, in any state, as slurmrestd writes them.

        22.05 prints those of everybody.
        """
        return await self._run("squeue", "--json", "-a", "-t", "all", "-u", user, is_json=True)

    async def job_rows(
        self,
        environment: Mapping[str, str],
        users: Iterable[str] = (),
        *,
        timeout_s: float,
        states: str = "all",
    ) -> Printed:
        """The jobs that slurmctld has; of some users, or of all.

        `environment` has the format. Each waiting task of an array has a row.
        """
        names = ",".join(sorted(users))
        of_users = ("-u", names) if names else ()
        return await self._output(
            ("squeue", "-a", "-r", "-h", "-t", states, *of_users),
            environment=environment,
            timeout_s=timeout_s,
            limit_bytes=_ROWS_LIMIT_BYTES,
            own_errors=True,
        )

    async def past_jobs(self, options: Sequence[str]) -> str:
        """Rows of slurmdbd without steps, one for each run, as slurmrestd writes them."""
        return await self._run("sacct", "--json", "-X", "-D", *options, is_json=True)

    async def clusters(self) -> str:
        """The clusters that slurmdbd has, one a line."""
        return await self._run("sacctmgr", "-nP", "show", "cluster", "format=cluster")

    async def nodes_shown(self, nodes: str) -> str:
        """One line a node, as slurmctld has it now."""
        return await self._run("scontrol", "-o", "show", "node", nodes)

    async def partitions_shown(self) -> str:
        """One line a partition, hidden ones included, as slurmctld has it now."""
        return await self._run("scontrol", "-a", "-o", "show", "partition")

    async def _run(self, *command: str, is_json: bool = False) -> str:
        """What it prints. With JSON its errors are no part of that, if it succeeds."""
        # 22.05 can't read what it writes itself with another format of time.
        environment = {} if is_json else _SECONDS
        printed = await self._output(command, environment=environment, own_errors=is_json)
        return printed.decode("utf-8", "replace")

    async def _output(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        own_errors: bool,
        timeout_s: float = 0.0,
        limit_bytes: int = 0,
    ) -> Printed:
        """`own_errors`: what it prints as errors is no part of the output."""
        shown = " ".join(command[:4])
        timeout_s, limit_bytes = timeout_s or self._timeout_s, limit_bytes or self._limit_bytes
        with TemporaryFile() if own_errors else nullcontext() as errors:
            try:
                running = await _RunningCommand.start(
                    (*self._prefix, *command),
                    self._environment() | dict(environment),
                    limit_bytes,
                    errors,
                )
            except OSError as error:
                raise CommandMissing(
                    f"{command[0]} can't be run: {error.strerror}",
                    hint="Install Slurm's client commands beside the server.",
                ) from None
            try:
                async with asyncio.timeout(timeout_s):
                    await running.ended.wait()
                    if len(running.output) > limit_bytes:
                        raise Unavailable(f"{shown} printed more than {limit_bytes} bytes")
                    await running.exited.wait()
            except TimeoutError:
                raise Unavailable(f"{shown} took longer than {timeout_s:g} s") from None
            finally:
                await running.aclose()
            if running.code:
                excerpt = _beginning(errors) or _excerpt(running.output)
                raise CommandFailed(f"{shown} failed with {running.code}: {excerpt}", excerpt)
            return running.output

    def _environment(self) -> dict[str, str]:
        path = str(self._bin_dir) if self._bin_dir else os.environ.get("PATH", os.defpath)
        environment = {"PATH": path, "LC_ALL": "C"}
        if self._conf:
            environment["SLURM_CONF"] = str(self._conf)
        elif "SLURM_CONF" in os.environ:
            environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
        return environment


def _excerpt(output: Printed) -> str:
    return output[: 4 * _EXCERPT].decode("utf-8", "replace").strip()[:_EXCERPT]


def _beginning(errors: IO[bytes] | None) -> str:
    if errors is None:
        return ""
    errors.seek(0)
    return _excerpt(errors.read(4 * _EXCERPT))


class _RunningCommand:
    """A command, its output up to a limit, and whether it has exited.

    Python starts it, not the event loop: uvloop forks, and then the handlers of gRPC run in the
    child, which can kill it. Python uses vfork, which runs none.

    The loop gets a descriptor to watch, not a pipe to own. A pipe that uvloop owns is closed twice,
    by it and by Python. Between the two another thread can get the number for a file of its own.

    The end of the output may never come, if a child of the command holds the pipe. So the exit is
    awaited apart from it.
    """

    def __init__(self, process: subprocess.Popen[bytes], limit_bytes: int) -> None:
        self.output = bytearray()
        self.ended = asyncio.Event()
        """All of the output was read, or more than the limit."""
        self.exited = asyncio.Event()
        assert process.stdout is not None
        self._process = process
        self._pipe = process.stdout
        self._limit_bytes = limit_bytes
        self._pidfd = os.pidfd_open(process.pid)
        os.set_blocking(self._pipe.fileno(), False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._loop.add_reader(self._pipe.fileno(), self._on_output)

    @classmethod
    async def start(
        cls,
        line: Sequence[str],
        environment: dict[str, str],
        limit_bytes: int,
        errors: IO[bytes] | None = None,
    ) -> _RunningCommand:
        """Raises `OSError` if it can't be run. The caller closes it."""
        process = subprocess.Popen(  # noqa: ASYNC220 - returns after exec
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors or subprocess.STDOUT,
            bufsize=0,
            env=environment,
        )
        return cls(process, limit_bytes)

    @property
    def code(self) -> int | None:
        """None until it has exited; a signal that ended it as a negative number."""
        return self._process.returncode

    def _on_output(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.output += data
        if not data or len(self.output) > self._limit_bytes:
            self._stop_reading()

    def _stop_reading(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
        self.ended.set()

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self.exited.set()

    async def aclose(self) -> None:
        """Kill it if it still runs, and reap it."""
        if self.code is None:
            self._process.kill()
        try:
            # Reaped even if this task is cancelled; otherwise a zombie stays.
            await asyncio.shield(self.exited.wait())
        finally:
            self._stop_reading()
