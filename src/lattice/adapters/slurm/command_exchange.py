"""Answers slurmrestd's paths from Slurm's own commands, with the rights of whoever runs them.

`squeue --json` and `sacct --json` print the documents that slurmrestd sends, from 22.05 on. So the
readers and the decoder of slurmrestd's answers serve a machine without slurmrestd, too.

The commands choose the version of the document, and the decoder accepts every one. The version in
the paths is only a name here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import parse_qs

from lattice.adapters.slurm.answer import SlurmRefused, checked, read_answer
from lattice.adapters.slurm.commands import CommandFailed, SlurmCommands
from lattice.adapters.slurm.http_client import RestReply
from lattice.base.errors import ConfigurationError, Unavailable

_VERSION = "v0.0.45"
JOBS = f"/slurm/{_VERSION}/jobs"
PAST_JOBS = f"/slurmdb/{_VERSION}/jobs"
_LISTS = (
    JOBS,
    f"/slurm/{_VERSION}/nodes",
    f"/slurm/{_VERSION}/diag",
    PAST_JOBS,
    f"/slurmdb/{_VERSION}/accounts",
    f"/slurmdb/{_VERSION}/associations",
)
"""Paths that must be on offer; only those of jobs are asked for."""
_OPTIONS = {"users": "-u", "step": "-j", "start_time": "-S", "end_time": "-E"}
_OFFER = json.dumps(
    {"paths": {each: {"get": {"parameters": [{"name": "users"}]}} for each in _LISTS}}
).encode()
_NO_JSON = ("serializer", "data_parser", "openapi", "unrecognized option", "json")


def _check(path: str, body: bytes) -> None:
    """Raise `Unavailable` for an answer with errors, in the words of the command."""
    command = "squeue" if path == JOBS else "sacct"
    try:
        checked(read_answer(body, "jobs"), 200, path)
    except SlurmRefused as refusal:
        texts = [each.text for each in refusal.problems if each.text]
        raise Unavailable(
            f"{command} could not answer: {'; '.join(texts[:3]) or 'its JSON makes no sense'}",
            hint="Try again in a minute.",
        ) from None


class CommandExchange:
    """Runs one command for each request of jobs."""

    reconnects = 0

    def __init__(self, commands: SlurmCommands, user: str) -> None:
        """`user` is the only one whose live jobs are asked for."""
        self._commands = commands
        self._user = user

    async def get(self, target: str, headers: Mapping[str, str], limit_bytes: int, /) -> RestReply:  # noqa: ARG002
        """Raises `Unavailable`, and `ConfigurationError` if the commands print no JSON."""
        path, _, query = target.partition("?")
        if path == "/openapi/v3":
            return RestReply(200, _OFFER)
        try:
            text = await self._printed(path, parse_qs(query))
        except CommandFailed as failure:
            printed = failure.output.lower()
            if any(each in printed for each in _NO_JSON):
                raise ConfigurationError(
                    f"Slurm's commands print no JSON on this machine: {failure.output}",
                    hint="An administrator installs Slurm's JSON plugins, built with json-c.",
                ) from None
            raise Unavailable(failure.message, hint="Try again in a minute.") from None
        body = text.encode()
        _check(path, body)
        return RestReply(200, body)

    async def _printed(self, path: str, asked: Mapping[str, list[str]]) -> str:
        if path == JOBS:
            return await self._commands.live_jobs(self._user)
        if path != PAST_JOBS:
            raise Unavailable(f"no command answers {path}")
        known = {name: values for name, values in asked.items() if name in _OPTIONS}
        options = [
            word for name, values in known.items() for word in (_OPTIONS[name], ",".join(values))
        ]
        return await self._commands.past_jobs(options)

    async def aclose(self) -> None:
        """Nothing is kept open."""
