"""slurmrestd played from recordings, and Slurm's commands from texts. In memory, no sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from lattice.adapters.slurm.commands import CommandFailed, SlurmCommands
from lattice.adapters.slurm.http_client import RestReply
from lattice.adapters.slurm.rest import SlurmRest
from lattice.base.errors import Unavailable

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "slurm"

Answering = Callable[[dict[str, str]], tuple[int, bytes]]


RECORDED = FIXTURES / "recorded"
"""Answers about the same jobs by several releases, by release and version."""


def recording(name: str, version: str = "v0.0.38") -> bytes:
    """The constructed answer, or the recorded one of a version that has none."""
    folders = (FIXTURES / version, *sorted(RECORDED.glob(f"*/{version}"), reverse=True))
    return next(each for each in folders if each.is_dir()).joinpath(f"{name}.json").read_bytes()


def recorded(name: str, version: str = "v0.0.38") -> dict[str, Any]:
    value: dict[str, Any] = json.loads(recording(name, version))
    return value


class RecordedSlurm:
    """Answers by path; every question asked is kept in `asked` as (path, query)."""

    def __init__(self, version: str = "v0.0.38") -> None:
        self.version = version
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.raw_queries: list[str] = []
        self.answers: dict[str, Answering] = {}
        self.last_change_s = 0
        self.away: set[str] = set()
        self.reconnects = 0
        for side, name, file in (
            ("slurm", "jobs", "jobs"),
            ("slurm", "nodes", "nodes"),
            ("slurm", "diag", "diag"),
            ("slurmdb", "jobs", "past-jobs"),
            ("slurmdb", "accounts", "accounts"),
            ("slurmdb", "associations", "associations"),
        ):
            if (FIXTURES / version / f"{file}.json").exists():
                self.serve(side, name, recording(file, version))
        self.answers["/openapi/v3"] = lambda _: (200, recording("openapi", version))

    def serve(self, side: str, name: str, body: bytes, status: int = 200) -> None:
        self.answers[f"/{side}/{self.version}/{name}"] = lambda _: (status, body)

    def serve_records(self, side: str, name: str, records: list[dict[str, Any]]) -> None:
        self.serve(side, name, json.dumps({"errors": [], name: records}).encode())

    def answer(self, side: str, name: str, answering: Answering) -> None:
        self.answers[f"/{side}/{self.version}/{name}"] = answering

    def rest(self) -> SlurmRest:
        return SlurmRest("http://slurmrestd", exchange=self)

    async def get(self, target: str, _headers: Mapping[str, str], _limit_bytes: int) -> RestReply:
        await asyncio.sleep(0)  # as a real one would let others run meanwhile
        path, _, raw = target.partition("?")
        path = path.rstrip("/")
        query = {key: values[0] for key, values in parse_qs(raw).items()}
        self.asked.append((path, query))
        self.raw_queries.append(raw)
        if path.split("/")[1] in self.away:
            raise ConnectionRefusedError("connection refused")
        since = query.get("update_time")
        if since is not None and int(since) - 1 >= self.last_change_s:
            return RestReply(304, b"")
        if path not in self.answers:
            return RestReply(404, b"not found")
        return RestReply(*self.answers[path](query))

    async def aclose(self) -> None:
        pass

    def count(self, path_part: str) -> int:
        return sum(path_part in path for path, _ in self.asked)


class RecordedCommands(SlurmCommands):
    """What the commands print, or nothing but an error."""

    def __init__(self, topology: str = "", associations: str = "") -> None:
        super().__init__()
        self.topology_text = topology
        self.associations_text = associations
        self.exit_codes_text = ""
        self.exit_codes_asked: list[list[int]] = []
        self.missing = False
        self.job_text = ""
        self.used_text = ""
        self.failure: CommandFailed | None = None
        self.configuration_text = "ClusterName             = lab\nPrivateData             = none\n"
        self.accounting_text = "PrivateData            = none\n"
        self.admin_level_text = "None\n"

    async def configuration(self) -> str:
        return self.configuration_text

    async def accounting_configuration(self) -> str:
        return self._printed(self.accounting_text)

    async def admin_level(self, user: str) -> str:  # noqa: ARG002
        return self.admin_level_text

    async def topology(self) -> str:
        return self._printed(self.topology_text)

    async def associations(self, cluster: str) -> str:  # noqa: ARG002
        return self._printed(self.associations_text)

    async def used(self, job_id: int) -> str:  # noqa: ARG002
        return self._printed(self.used_text)

    async def job_shown(self, job_id: int) -> str:  # noqa: ARG002
        if self.failure is not None:
            raise self.failure
        return self._printed(self.job_text)

    async def exit_codes(self, job_ids: Iterable[int]) -> str:
        self.exit_codes_asked.append(sorted(job_ids))
        return self._printed(self.exit_codes_text)

    def _printed(self, text: str) -> str:
        if self.missing:
            raise Unavailable("scontrol can't be run: No such file or directory")
        return text
