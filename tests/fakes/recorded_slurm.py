"""slurmrestd played from recordings, and Slurm's commands from texts. In memory, no sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from lattice.adapters.slurm.commands import CommandFailed, SlurmCommands
from lattice.adapters.slurm.http_client import RestReply, TooLarge
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

    async def get(self, target: str, _headers: Mapping[str, str], limit_bytes: int) -> RestReply:
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
        reply = RestReply(*self.answers[path](query))
        if len(reply.body) > limit_bytes:
            raise TooLarge
        return reply

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
        self.jobs_shown: list[str] = []
        """The names of the jobs that scontrol was asked for."""
        self.used_text = ""
        self.failure: Unavailable | None = None
        self.configuration_text = "ClusterName             = lab\nPrivateData             = none\n"
        self.accounting_text = "PrivateData            = none\n"
        self.admin_level_text = "None\n"
        self.jobs: list[dict[str, str]] = []
        """What squeue knows, each job by its fields; tasks of one record have one `JobID`."""
        self.squeue_asked: list[tuple[str, ...]] = []
        self.squeue_failure: Unavailable | None = None
        self.squeue_fields: frozenset[str] | None = None
        """Those that this release knows; None for all."""

    async def configuration(self) -> str:
        return self.configuration_text

    async def accounting_configuration(self) -> str:
        return self._printed(self.accounting_text)

    async def admin_level(self, user: str) -> str:  # noqa: ARG002
        return self.admin_level_text

    async def job_rows(
        self,
        environment: Mapping[str, str],
        users: Iterable[str] = (),
        *,
        timeout_s: float,  # noqa: ARG002
        states: str = "all",
    ) -> bytes:
        """As squeue prints them: each field, and what the format has after its width."""
        asked = tuple(sorted(users))
        self.squeue_asked.append(asked)
        if self.squeue_failure is not None:
            raise self.squeue_failure
        await asyncio.sleep(0)
        shown = [
            job
            for job in self.jobs
            if (not asked or job["UserName"] in asked)
            and (states == "all" or job["State"] == states.upper())
        ]
        form = [each.split(":0", 1) for each in environment["SQUEUE_FORMAT2"].split(",")]
        unknown = [
            name for name, _ in form if self.squeue_fields and name not in self.squeue_fields
        ]
        if unknown:
            text = f"squeue: error: Invalid job format specification: {unknown[0]}"
            raise CommandFailed("squeue failed with 1", text)
        rows = ("".join(job.get(name, "N/A") + end for name, end in form) for job in shown)
        return "".join(f"{row}\n" for row in rows).encode("utf-8", "surrogateescape")

    async def topology(self) -> str:
        return self._printed(self.topology_text)

    async def associations(self, cluster: str) -> str:  # noqa: ARG002
        return self._printed(self.associations_text)

    async def used(self, job_id: int) -> str:  # noqa: ARG002
        return self._printed(self.used_text)

    async def job_shown(self, name: str) -> str:
        self.jobs_shown.append(name)
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


def squeue_job(number: int, **fields: str) -> dict[str, str]:
    """A job as squeue 26.05 prints it; one that waits, unless `fields` say otherwise."""
    return {
        "JobID": str(number),
        "ArrayJobID": str(number),
        "UserName": "alice",
        "Account": "research",
        "Partition": "main",
        "QOS": "normal",
        "State": "PENDING",
        "Reason": "Priority",
        "SubmitTime": "1795119543",
        "TimeLimit": "1-02:04:00",
        "NumNodes": "1",
        "NumTasks": "1",
        "NumCPUs": "1",
        "tres-alloc": "cpu=1,mem=256M,node=1,billing=1",
        "exit_code": "0:0",
        "RestartCnt": "0",
        "NodeList": "",
        "Name": "wrap",
        "Comment": "(null)",
        "WorkDir": "/home/alice",
        "Command": "(null)",
        "STDOUT": "slurm-%j.out",
        "Container": "(null)",
        "Dependency": "(null)",
        "TimeUsed": "0:00",
        **fields,
    }


def running_job(number: int, **fields: str) -> dict[str, str]:
    """One that runs on n1."""
    times = {"StartTime": "1795119544", "EndTime": "1826655544", "EligibleTime": "1795119543"}
    run = {"State": "RUNNING", "Reason": "None", "NodeList": "n1", "BatchHost": "n1"}
    return squeue_job(number, **{**times, **run, **fields})
