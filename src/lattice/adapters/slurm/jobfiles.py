"""`SlurmJobFiles`: the port `JobFiles` by `scontrol show job`, which expands file names.

slurmrestd omits default names, and returns patterns unexpanded. The paths are text of the job's
owner: they are opened with the owner's rights and never with ours.
"""

from __future__ import annotations

import re

from lattice.adapters.slurm.commands import CommandFailed, SlurmCommands
from lattice.base.errors import NotFound
from lattice.domain.logs import LogKind
from lattice.domain.outputs import NamedOutputs

_FIELD = re.compile(r"^ +(StdOut|StdErr|BatchHost)=(.*)$", re.MULTILINE)
_GONE = "Invalid job id"


class SlurmJobFiles:
    """For one Slurm cluster."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands

    async def of(self, job_id: int) -> NamedOutputs:
        """Raises `NotFound` after slurmctld has removed the job, and `Unavailable`."""
        try:
            shown = await self._commands.job_shown(job_id)
        except CommandFailed as failure:
            if _GONE in failure.said:
                raise NotFound(f"slurmctld does not know job {job_id} any more.") from None
            raise
        return parse_outputs(shown)


def parse_outputs(shown: str) -> NamedOutputs:
    """The files of a batch script. The last of each name counts: those are Slurm's own lines."""
    found = dict(_FIELD.findall(shown))
    files = {
        kind: path
        for kind, name in ((LogKind.STDOUT, "StdOut"), (LogKind.STDERR, "StdErr"))
        if (path := found.get(name, "")).startswith("/") and path != "/dev/null"
    }
    if files.get(LogKind.STDERR) == files.get(LogKind.STDOUT):
        files.pop(LogKind.STDERR, None)
    return NamedOutputs(host=found.get("BatchHost", ""), files=files)
