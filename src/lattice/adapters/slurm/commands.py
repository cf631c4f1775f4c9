"""Slurm's own commands, for data that slurmrestd does not have, and for changes of nodes.

They run without a shell, with a small environment, and with limits on time and output. Their output
is untrusted like all text from Slurm: parsers skip malformed lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from lattice.base.errors import Unavailable


class CommandFailed(Unavailable):
    """A command that ran and failed; `output` is its output."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


class SlurmCommands:
    """Runs `scontrol`, `sacctmgr` and `sacct` as the server's own user.

    They are found in `bin_dir`, else on the PATH. `prefix` goes before every command line, for a
    site with Slurm in a container. `operate_prefix` goes before commands that change nodes.
    """

    def __init__(
        self,
        conf: Path | None = None,
        *,
        bin_dir: Path | None = None,
        prefix: Sequence[str] = (),
        operate_prefix: Sequence[str] = (),
        timeout_s: float = 10.0,
        limit_bytes: int = 32 * 1024 * 1024,
    ) -> None:
        self._conf = conf
        self._bin_dir = bin_dir
        self._prefix = tuple(prefix)
        self._operate_prefix = tuple(operate_prefix)
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes

    async def topology(self) -> str:
        """The switches: `scontrol show topology`. Empty if the site has none."""
        return await self._run("scontrol", "show", "topology")

    async def associations(self, cluster: str) -> str:
        """One line an association, deleted ones included: `id|cluster|account|user`."""
        return await self._run(
            *("sacctmgr", "-nP", "show", "assoc", "withdeleted"),
            *("format=id,cluster,account,user", f"cluster={cluster}"),
        )

    async def exit_codes(self, job_ids: Iterable[int]) -> str:
        """One line a run: `id|seconds of its submit|code:signal`."""
        ids = ",".join(map(str, sorted(set(job_ids))))
        return await self._run(*("sacct", "-nPXD", "-o", "JobIDRaw,Submit,ExitCode"), *("-j", ids))

    async def used(self, job_id: int) -> str:
        """One line a run and a step: `id|seconds of its start|processor time|memory|joules`."""
        shown = "JobIDRaw,Start,TotalCPU,MaxRSS,ConsumedEnergyRaw"
        return await self._run("sacct", "-nPD", "-o", shown, "-j", str(job_id))

    async def job_shown(self, job_id: int) -> str:
        """One job as slurmctld has it, on several lines, with file names expanded."""
        return await self._run("scontrol", "show", "job", str(job_id))

    async def nodes_shown(self, nodes: str) -> str:
        """One line a node, as slurmctld has it now."""
        return await self._run("scontrol", "-o", "show", "node", nodes)

    async def partitions_shown(self) -> str:
        """One line a partition, hidden ones included, as slurmctld has it now."""
        return await self._run("scontrol", "-a", "-o", "show", "partition")

    async def update_nodes(self, nodes: str, state: str, reason: str = "") -> None:
        """Set the state of nodes; Slurm requires a reason for some states."""
        why = (f"reason={reason}",) if reason else ()
        update = ("scontrol", "update", f"nodename={nodes}", f"state={state}", *why)
        await self._run(*self._operate_prefix, *update)

    async def _run(self, *command: str) -> str:
        shown = " ".join(command[:4])
        try:
            transport, protocol = await asyncio.get_running_loop().subprocess_exec(
                lambda: _Output(self._limit_bytes),
                *self._prefix,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment(),
            )
        except OSError as error:
            raise Unavailable(
                f"{command[0]} can't be run: {error.strerror}",
                hint="Install Slurm's client commands beside the server.",
            ) from None
        try:
            async with asyncio.timeout(self._timeout_s):
                await protocol.ended.wait()
                if len(protocol.output) > self._limit_bytes:
                    raise Unavailable(f"{shown} printed more than {self._limit_bytes} bytes")
                await protocol.exited.wait()
        except TimeoutError:
            raise Unavailable(f"{shown} took longer than {self._timeout_s:g} s") from None
        finally:
            await _end(transport, protocol)
        text = protocol.output.decode("utf-8", "replace")
        if code := transport.get_returncode():
            excerpt = text.strip()[:300]
            raise CommandFailed(f"{shown} failed with {code}: {excerpt}", excerpt)
        return text

    def _environment(self) -> dict[str, str]:
        path = str(self._bin_dir) if self._bin_dir else os.environ.get("PATH", os.defpath)
        environment = {"PATH": path, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        if self._conf:
            environment["SLURM_CONF"] = str(self._conf)
        elif "SLURM_CONF" in os.environ:
            environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
        return environment


class _Output(asyncio.SubprocessProtocol):
    """The output of a command, up to a limit, and whether it has exited.

    `asyncio.subprocess.Process.wait` is not used: it also waits for the end of the output. That
    never comes if a child of the command holds the pipe, or if the output is not read.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.output = bytearray()
        self.ended = asyncio.Event()
        """All of the output was read, or more than the limit."""
        self.exited = asyncio.Event()
        self._limit_bytes = limit_bytes

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002
        if len(self.output) <= self._limit_bytes:
            self.output += data
        if len(self.output) > self._limit_bytes:
            self.ended.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        self.ended.set()

    def process_exited(self) -> None:
        self.exited.set()


async def _end(transport: asyncio.SubprocessTransport, protocol: _Output) -> None:
    if transport.get_returncode() is None:
        with contextlib.suppress(ProcessLookupError):
            transport.kill()
    try:
        # Reaped even if this task is cancelled; otherwise a zombie stays.
        await asyncio.shield(protocol.exited.wait())
    finally:
        transport.close()
